"""Learners that share a batch: each computes its own episodes, all make the same step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch

T = TypeVar("T")


class SingleProcess:
    """A learner in one process: every total is its own."""

    num_workers = 1
    rank = 0
    adds_gradients = True
    """Whether gradients are still to be added up after a backward, where there are several."""
    splits_batch = False
    """Whether each worker is given a part of the batch, rather than all of it."""

    def gather(self, own: T) -> list[T]:
        """What each worker has, in the order of their ranks. Tensors must be on the CPU."""
        return [own]

    def add_up(self, tensors: Sequence[torch.Tensor]) -> None:
        """Each tensor becomes its sum over the workers, in place."""

    def largest(self, number: float) -> float:
        """The largest of the workers' numbers."""
        return number

    def whole_norm(self, norm: torch.Tensor) -> torch.Tensor:
        """The gradient's norm, from that of the gradient that this worker has."""
        return norm

    def total(self, *numbers: float) -> list[float]:
        """The sum of each number over the workers."""
        tensor = torch.tensor(numbers, dtype=torch.float64)
        self.add_up([tensor])
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

    def add_up(self, tensors: Sequence[torch.Tensor]) -> None:
        for tensor in tensors:
            # A collective of the GPU's own takes nothing that lies elsewhere.
            moved = tensor.to(self._device)
            torch.distributed.all_reduce(moved, group=self._group)
            if moved is not tensor:
                tensor.copy_(moved)

    def largest(self, number: float) -> float:
        tensor = torch.tensor(number, dtype=torch.float64, device=self._device)
        torch.distributed.all_reduce(tensor, torch.distributed.ReduceOp.MAX, group=self._group)
        return float(tensor)


class ShardedWorkers(DistributedWorkers):
    """The processes of a group, each with a part of the model: see `sharding`."""

    adds_gradients = False
    splits_batch = False

    def whole_norm(self, norm: torch.Tensor) -> torch.Tensor:
        squared = norm.square()
        self.add_up([squared])
        return squared.sqrt()


def current_workers(device: torch.device) -> SingleProcess:
    """All processes of this job if there are several, else this one."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return DistributedWorkers(device=device)
    return SingleProcess()
