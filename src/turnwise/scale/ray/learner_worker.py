"""A process that learns: a copy of the model, and its share of every minibatch."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from turnwise.algo.masked import BatchTotals
from turnwise.config import ConfigStore
from turnwise.episode.seeds import derive_seed
from turnwise.errors import import_extra
from turnwise.learner import Learner, LearnerOptions, PPOBatch, make_learner
from turnwise.learner.packing import Pack
from turnwise.learner.tally import Tally
from turnwise.learner.workers import DistributedWorkers
from turnwise.scale.ray.arrays import Arrays, from_arrays, to_arrays
from turnwise.scale.ray.episode_worker import ModelSource
from turnwise.trainer.assembly import policy_weights
from turnwise.trainer.state import seed_generators, trained_parameters

ray = import_extra("ray", "ray")

_LONGEST_MEETING = timedelta(minutes=30)


class SharingLearner(Learner):
    """Has the whole batch, as all others do, and computes its part of each minibatch.

    So minibatches are those of one learner alone, and so are the figures.
    """

    def __init__(self, *arguments: Any, rank: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._rank = rank

    def update(self, batch: PPOBatch) -> dict[str, float]:
        assert batch.attention_mask is not None
        self._num_tokens = batch.attention_mask.sum(1).cpu()
        return super().update(batch)

    def _minibatches(self, epoch: int, num_rows: int) -> Iterator[torch.Tensor]:
        for rows in super()._minibatches(epoch, num_rows):
            yield share_of(rows, self._num_tokens[rows], self._rank, self.workers.num_workers)

    def _packs(self, batch: PPOBatch, rows: torch.Tensor) -> list[Pack]:
        return super()._packs(batch, rows) if len(rows) else []

    def _has_moved_far(self, part: Tally, num_tokens: int, totals: BatchTotals) -> bool:
        # The moment at which a minibatch is computed and nobody has looked at it yet.
        gathered: list[Any] = [None] * self.workers.num_workers
        torch.distributed.all_gather_object(gathered, part)
        part.become_sum(gathered)
        return super()._has_moved_far(part, num_tokens, totals)


def share_of(
    rows: torch.Tensor, num_tokens: torch.Tensor, rank: int, num_workers: int
) -> torch.Tensor:
    """One worker's rows: neighbours, which may share an opening, with about as many tokens.

    >>> share_of(torch.arange(4), torch.tensor([6, 2, 2, 2]), 1, 2)
    tensor([1, 2, 3])
    """
    ends = num_tokens.cumsum(0)
    middles = ends - num_tokens / 2
    owners = (middles * num_workers / max(int(num_tokens.sum()), 1)).long()
    return rows[owners == rank]


class LearnerWorker:
    """One of the learners. Its calls come in order; `ping` is answered beside them."""

    def __init__(self, rank: int, num_workers: int) -> None:
        self._rank = rank
        self._num_workers = num_workers

    def ping(self) -> int:
        """The process's id."""
        return os.getpid()

    def open(self) -> tuple[str, int]:
        """Where the others meet: an address of this process."""
        self._store = TCPStore(
            "0.0.0.0", 0, self._num_workers, is_master=True, wait_for_workers=False
        )
        return ray.util.get_node_ip_address(), int(self._store.port)

    def join(
        self, address: tuple[str, int] | None, config: ConfigStore, source: ModelSource
    ) -> None:
        """Meet the others, and build the learner."""
        seed_generators(derive_seed(config.training.seed, "learner", self._rank))
        model = source.load()
        make: Any = Learner
        if address is not None:
            store = (
                self._store
                if self._rank == 0
                else TCPStore(*address, self._num_workers, is_master=False)
            )
            is_gpu = model.device.type == "cuda"
            if is_gpu:
                torch.cuda.set_device(model.device)
            torch.distributed.init_process_group(
                "nccl" if is_gpu else "gloo",
                store=store,
                rank=self._rank,
                world_size=self._num_workers,
                timeout=_LONGEST_MEETING,
            )
            workers = DistributedWorkers(device=model.device)
            make = functools.partial(SharingLearner, rank=self._rank, workers=workers)
        self._learner = make_learner(config, model, make=make)

    def load(self, state: tuple[Arrays, Arrays]) -> None:
        """Become the learner that gave this state."""
        load_learner_state(self._learner, state)

    def update(self, batch: PPOBatch, options: LearnerOptions) -> Any:
        """Figures and seen log-probs; of the first learner also its state, and the policy."""
        self._learner.options = options
        figures = self._learner.update(batch)
        return self._outcome(figures)

    def imitate(self, batch: PPOBatch, options: LearnerOptions, learning_rate: float | None) -> Any:
        self._learner.options = options
        return self._outcome(self._learner.imitate(batch, learning_rate))

    def _outcome(self, figures: dict[str, float]) -> Any:
        learner = self._learner
        assert learner.seen_log_probs is not None
        told = (figures, learner.seen_log_probs.cpu().numpy())
        if self._rank:
            return told, None, None
        return told, learner_state(learner), to_arrays(policy_weights(learner))

    def score(self, batch: PPOBatch) -> tuple[torch.Tensor | None, ...]:
        found = self._learner.score(batch)
        grids = (found.log_probs, found.entropy, found.values, found.last_values)
        return tuple(None if grid is None else grid.cpu() for grid in grids)

    def reference_log_probs(self, batch: PPOBatch) -> torch.Tensor:
        return self._learner.reference_log_probs(batch).cpu()

    def sum_pi_squared(self, batch: PPOBatch) -> torch.Tensor:
        return self._learner.sum_pi_squared(batch).cpu()


def learner_state(learner: Learner) -> tuple[Arrays, Arrays]:
    """Weights, and the optimiser with all the rest: what a checkpoint holds of a learner."""
    return to_arrays(trained_parameters(learner.model)), to_arrays(learner.state_tensors())


@torch.no_grad()
def load_learner_state(learner: Learner, state: tuple[Arrays, Arrays]) -> None:
    weights, rest = (from_arrays(arrays) for arrays in state)
    own = trained_parameters(learner.model)
    for name, tensor in weights.items():
        own[name].copy_(tensor)
    learner.optimizer.refresh_masters()
    learner.load_state_tensors(rest)
