"""The processes that learn together: each computes its own episodes, all make the same step.

Context parallelism: some of them split the tokens of every pack (Ulysses). Each has the same pack
and computes a slice of its tokens. Before the attention all of them exchange: each gets all tokens
of its share of the heads, and afterwards its own tokens of all heads. So the activations of an
episode are divided by the size of the group, and the attention itself is that of one process, with
its packed episodes, shared prefixes, branches and windows. The log-probs are gathered, and all
learners of a group compute the same loss. Each backpropagates through its own tokens alone; the sum
of their gradients is the gradient of the loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch.distributed.device_mesh import init_device_mesh

from turnwise.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True)
class Context:
    """The learners that split each pack, and this one's place among them; one by default."""

    size: int = 1
    rank: int = 0
    group: Any = None

    def padding(self, num_tokens: int) -> int:
        """Return how many tokens are added to a pack so that all slices have the same length."""
        return -num_tokens % self.size

    def slice(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return this learner's slice of what belongs to the tokens of a pack, padded with 0."""
        if self.size == 1:
            return tokens
        padding = tokens.new_zeros(self.padding(len(tokens)), *tokens.shape[1:])
        return torch.cat([tokens, padding]).chunk(self.size)[self.rank]

    def select(self, at: torch.Tensor, num_tokens: int) -> Selection:
        """Return some tokens `at` [R] of a pack as a selection of this learner's slice."""
        if self.size == 1:
            return Selection(self, len(at), at, None)
        length = (num_tokens + self.padding(num_tokens)) // self.size
        items = (at // length == self.rank).nonzero().squeeze(1)
        return Selection(self, len(at), at[items] - self.rank * length, items)

    def to_heads(self, x: torch.Tensor) -> torch.Tensor:
        """Exchange [H, n, D] of this learner's tokens for [H / size, N, D] of its heads."""
        if len(x) < self.size:  # learners share a key head
            x = x.repeat_interleave(self.size // len(x), 0)
        return self.exchange(x)

    def minimum(self, number: int, device: torch.device) -> int:
        """Return the smallest of the learners' numbers."""
        if self.size == 1:
            return number
        smallest = torch.tensor(number, device=device)
        torch.distributed.all_reduce(smallest, torch.distributed.ReduceOp.MIN, group=self.group)
        return int(smallest)

    def exchange(self, x: torch.Tensor) -> torch.Tensor:
        """Divide the first dimension over the learners, and join the second one's parts.

        So [N, H / size, D] of this learner's heads becomes [n, H, D] of its tokens.
        """
        if self.size == 1:
            return x
        by_rank = x.reshape(self.size, -1, *x.shape[1:])
        received: torch.Tensor = _AllToAll.apply(by_rank, self.group)  # type: ignore[no-untyped-call]
        return received.transpose(0, 1).flatten(1, 2)


class _AllToAll(torch.autograd.Function):
    """Sends row r to learner r; in the backward its gradient comes back."""

    @staticmethod
    def forward(ctx: Any, by_rank: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        received = torch.empty_like(by_rank, memory_format=torch.contiguous_format)
        torch.distributed.all_to_all_single(received, by_rank.contiguous(), group=group)
        return received

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _AllToAll.apply(gradient, ctx.group), None  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Selection:
    """R tokens of a pack, of which this learner computes K; others compute the rest."""

    context: Context
    num_tokens: int
    """R."""
    indices: torch.Tensor
    """[K], their indices in this learner's slice."""
    items: torch.Tensor | None
    """[K], which of the R they are; None for one learner, which computes all."""

    def pick(self, values: torch.Tensor) -> torch.Tensor:
        """Return the K of values that belong to the R tokens."""
        return values if self.items is None else values[self.items]

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """Return the values of all R tokens, given those of the K."""
        if self.items is None:
            return values
        whole = values.new_zeros(self.num_tokens).index_copy(0, self.items, values.detach())
        torch.distributed.all_reduce(whole, group=self.context.group)
        # All compute the same loss of it, so that each takes the gradient of its own part.
        return whole.index_copy(0, self.items, values)


class Workers:
    """The processes that learn together; by default this one alone, to which all is its own.

    With a `device` they are all processes of this job, each with a shard of the model: see
    `sharding`. Each `context_size` adjacent ones split every pack (`context`), and count as one
    worker: rows are divided, and metrics summed, over the processes that have the same part of
    their packs.
    """

    def __init__(self, device: torch.device | None = None, context_size: int = 1) -> None:
        self.num_workers = 1
        self.rank = 0
        self.context = Context()
        """The processes that split the tokens of each pack, as one worker."""
        self.is_sharded = device is not None
        self._device = device
        self._group = None
        if device is None:
            return
        number = torch.distributed.get_world_size()
        if number % context_size:
            raise ConfigError(
                f"ray.context_parallel_size got {context_size}, expected a divisor of "
                f"ray.num_learners, which is {number}"
            )
        if context_size > 1:
            mesh = init_device_mesh(device.type, (number // context_size, context_size))
            self._group = mesh.get_group(0)
            self.context = Context(context_size, mesh.get_local_rank(1), mesh.get_group(1))
        self.num_workers = torch.distributed.get_world_size(self._group)
        self.rank = torch.distributed.get_rank(self._group)

    def gather(self, value: T) -> list[T]:
        """Return the value of each worker, in the order of their ranks. Tensors are on the CPU."""
        gathered: list[Any] = [value] * self.num_workers
        if self.is_sharded:
            torch.distributed.all_gather_object(gathered, value, group=self._group)
        return gathered

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Replace a tensor by its sum over the workers, in place."""
        if self.is_sharded:
            moved = tensor.to(self._device)  # nccl takes tensors on the GPU only
            torch.distributed.all_reduce(moved, group=self._group)
            if moved is not tensor:
                tensor.copy_(moved)

    def maximum(self, number: float) -> float:
        """Return the largest of the workers' numbers."""
        if not self.is_sharded:
            return number
        tensor = torch.tensor(number, dtype=torch.float64, device=self._device)
        torch.distributed.all_reduce(tensor, torch.distributed.ReduceOp.MAX, group=self._group)
        return float(tensor)

    def global_norm(self, norm: torch.Tensor) -> torch.Tensor:
        """Return the norm of the whole gradient, given that of this worker's gradient."""
        return self.sum_over_shards(norm.square()).sqrt() if self.is_sharded else norm

    def sum_over_shards(self, number: torch.Tensor) -> torch.Tensor:
        """Return the sum over the shards of the model, given that of this worker's shard."""
        if self.is_sharded:
            number = number.to(self._device)
            torch.distributed.all_reduce(number)  # over all, of which each has a shard
        return number
