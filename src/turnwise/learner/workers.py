"""The processes that learn together: each computes its own episodes, all make the same step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch

from turnwise.errors import ConfigError
from turnwise.learner.context import Context

T = TypeVar("T")


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

    def gather(self, own: T) -> list[T]:
        """Return the value of each worker, in the order of their ranks. Tensors are on the CPU."""
        return [own]

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

    def gather(self, own: T) -> list[T]:
        gathered: list[Any] = [None] * self.num_workers
        torch.distributed.all_gather_object(gathered, own, group=self._group)
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
        super().__init__(_own_group(groups), device)
        groups = [range(n, n + context_size) for n in range(0, number, context_size)]
        self.context = Context(context_size, rank % context_size, _own_group(groups))

    def global_norm(self, norm: torch.Tensor) -> torch.Tensor:
        return self.sum_over_shards(norm.square()).sqrt()

    def sum_over_shards(self, number: torch.Tensor) -> torch.Tensor:
        number = number.to(self._device)
        torch.distributed.all_reduce(number)  # over all, of which each has a shard
        return number


def _own_group(partition: Sequence[Sequence[int]]) -> Any:
    """Create a process group of each part; return that of this process."""
    rank = torch.distributed.get_rank()
    groups = [(torch.distributed.new_group(list(ranks)), ranks) for ranks in partition]
    return next(group for group, ranks in groups if rank in ranks)


def current_workers(device: torch.device) -> SingleProcess:
    """Return all processes of this job if there are several, else this one."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return DistributedWorkers(device=device)
    return SingleProcess()
