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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch.autograd.function import once_differentiable

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
            return Selection(self, at, at, None)
        length = (num_tokens + self.padding(num_tokens)) // self.size
        owner = at // length
        counts = torch.bincount(owner, minlength=self.size)
        # All gather equally many: those with fewer compute their first token once more.
        most = int(counts.max())
        order = owner.argsort(stable=True)
        starts = counts.cumsum(0) - counts
        within = torch.empty_like(order)
        within[order] = torch.arange(len(at), device=at.device) - starts[owner[order]]
        items = (owner == self.rank).nonzero().squeeze(1)
        missing = at.new_zeros(most - len(items))
        own = torch.cat([at[items] - self.rank * length, missing])
        return Selection(self, own, torch.cat([items, missing]), owner * most + within)

    def to_heads(self, x: torch.Tensor) -> torch.Tensor:
        """Exchange [1, H, n, D] of this learner's tokens for [1, H / size, N, D] of its heads."""
        if self.size == 1:
            return x
        heads = x[0]
        if len(heads) < self.size:  # learners share a key head
            heads = heads.repeat_interleave(self.size // len(heads), 0)
        # [size, H / size, n, D]
        by_rank = self._exchange(heads.reshape(self.size, -1, *heads.shape[1:]))
        return by_rank.transpose(0, 1).flatten(1, 2)[None]

    def to_tokens(self, x: torch.Tensor) -> torch.Tensor:
        """Exchange [1, N, H / size, D] of this learner's heads for [1, n, H, D] of its tokens."""
        if self.size == 1:
            return x
        # [size, n, H / size, D]
        by_rank = self._exchange(x[0].reshape(self.size, -1, *x.shape[2:]))
        return by_rank.transpose(0, 1).flatten(1, 2)[None]

    def minimum(self, number: int, device: torch.device) -> int:
        """Return the smallest of the learners' numbers."""
        if self.size == 1:
            return number
        smallest = torch.tensor(number, device=device)
        torch.distributed.all_reduce(smallest, torch.distributed.ReduceOp.MIN, group=self.group)
        return int(smallest)

    def _exchange(self, x: torch.Tensor) -> torch.Tensor:
        exchanged: torch.Tensor = _AllToAll.apply(x, self.group)  # type: ignore[no-untyped-call]
        return exchanged


@dataclass(frozen=True)
class Selection:
    """R tokens of a pack, of which this learner computes K; others compute the rest."""

    context: Context
    own: torch.Tensor
    """[K], their places in this learner's slice."""
    items: torch.Tensor
    """[K], which of the R they are; not used for one learner."""
    places: torch.Tensor | None
    """[R], where each is among all that was gathered; None for one learner."""

    def pick(self, values: torch.Tensor) -> torch.Tensor:
        """Return the K of values that belong to the R tokens."""
        return values if self.places is None else values[self.items]

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """Return the values of all R tokens, given those of the K."""
        if self.places is None or not len(self.places):
            return values
        gathered: torch.Tensor = _Gather.apply(  # type: ignore[no-untyped-call]
            values, self.context
        )
        return gathered[self.places]


class _AllToAll(torch.autograd.Function):
    """Sends row r of [size, ...] to learner r; applied twice it changes nothing."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return _all_to_all(x, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _all_to_all(gradient, ctx.group), None


def _all_to_all(x: torch.Tensor, group: Any) -> torch.Tensor:
    x = x.contiguous()
    received = torch.empty_like(x)
    torch.distributed.all_to_all_single(received, x, group=group)
    return received


class _Gather(torch.autograd.Function):
    """Joins [K] of each learner. All compute the same loss of it, so that each takes the gradient
    of its own part."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, context: Context) -> torch.Tensor:
        ctx.context = context
        parts = [torch.empty_like(x) for _ in range(context.size)]
        torch.distributed.all_gather(parts, x.contiguous(), group=context.group)
        return torch.cat(parts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient.chunk(ctx.context.size)[ctx.context.rank], None


class SingleProcess:
    """One process: every collective returns what it is given."""

    num_workers = 1
    rank = 0
    reduces_gradients = True
    """Whether the gradients of several workers are still to be summed after a backward."""
    splits_batch = False
    """Whether each worker is given a part of the batch, rather than all of it."""
    context = Context()
    """The processes that split the tokens of each pack, as one worker."""

    def gather(self, value: T) -> list[T]:
        """Return the value of each worker, in the order of their ranks. Tensors are on the CPU."""
        return [value]

    def all_reduce(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace each tensor by its sum over the workers, in place."""

    def maximum(self, number: float) -> float:
        """Return the largest of the workers' numbers."""
        return number

    def global_norm(self, norm: torch.Tensor) -> torch.Tensor:
        """Return the norm of the whole gradient, given that of this worker's gradient."""
        return norm

    def sum_over_shards(self, number: torch.Tensor) -> torch.Tensor:
        """Return the sum over the shards of the model, given that of this worker's shard."""
        return number

    def total(self, *numbers: float) -> list[float]:
        """Return the sum of each number over the workers."""
        tensor = torch.tensor(numbers, dtype=torch.float64)
        self.all_reduce([tensor])
        return [float(x) for x in tensor]


class DistributedWorkers(SingleProcess):
    """The processes of a torch.distributed group, each with a whole copy of the model."""

    splits_batch = True

    def __init__(self, group: Any = None, device: torch.device | None = None) -> None:
        self._group = group
        self._device = device or torch.device("cpu")
        self.num_workers = torch.distributed.get_world_size(group)
        self.rank = torch.distributed.get_rank(group)

    def gather(self, value: T) -> list[T]:
        gathered: list[Any] = [None] * self.num_workers
        torch.distributed.all_gather_object(gathered, value, group=self._group)
        return gathered

    def all_reduce(self, tensors: Sequence[torch.Tensor]) -> None:
        for tensor in tensors:
            moved = tensor.to(self._device)  # nccl takes tensors on the GPU only
            torch.distributed.all_reduce(moved, group=self._group)
            if moved is not tensor:
                tensor.copy_(moved)

    def maximum(self, number: float) -> float:
        tensor = torch.tensor(number, dtype=torch.float64, device=self._device)
        torch.distributed.all_reduce(tensor, torch.distributed.ReduceOp.MAX, group=self._group)
        return float(tensor)


class ShardedWorkers(DistributedWorkers):
    """All processes of this job, each with a shard of the model: see `sharding`.

    Each `context_size` adjacent ones split every pack (`context`), and count as one worker: rows
    are divided, and metrics summed, over the processes that have the same part of their packs.
    """

    reduces_gradients = False
    splits_batch = False

    def __init__(self, device: torch.device, context_size: int = 1) -> None:
        number, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
        if number % context_size:
            raise ConfigError(
                f"ray.context_parallel_size got {context_size}, expected a divisor of "
                f"ray.num_learners, which is {number}"
            )
        if context_size == 1:
            super().__init__(device=device)
            return
        groups = [range(part, number, context_size) for part in range(context_size)]
        super().__init__(_group_among(groups), device)
        groups = [range(n, n + context_size) for n in range(0, number, context_size)]
        self.context = Context(context_size, rank % context_size, _group_among(groups))

    def global_norm(self, norm: torch.Tensor) -> torch.Tensor:
        return self.sum_over_shards(norm.square()).sqrt()

    def sum_over_shards(self, number: torch.Tensor) -> torch.Tensor:
        number = number.to(self._device)
        torch.distributed.all_reduce(number)  # over all, of which each has a shard
        return number


def _group_among(partition: Sequence[Sequence[int]]) -> Any:
    """Create a process group of each part; return that of this process."""
    rank = torch.distributed.get_rank()
    groups = [(torch.distributed.new_group(list(ranks)), ranks) for ranks in partition]
    return next(group for group, ranks in groups if rank in ranks)


def current_workers(device: torch.device) -> SingleProcess:
    """Return all processes of this job if there are several, else this one."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return DistributedWorkers(device=device)
    return SingleProcess()
