"""`LearnerWorker`: a process with a shard of the model, and its share of each update."""

import os
from datetime import timedelta
from typing import Any, TypeAlias

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from turnwise.algo import Algorithm
from turnwise.config import ConfigStore
from turnwise.episode.seeds import derive_seed
from turnwise.errors import import_extra
from turnwise.learner import LearnerOptions, Outputs, PPOBatch, make_learner
from turnwise.learner.base import LearnerState
from turnwise.learner.sharding import local_shards
from turnwise.models.empty import model_device
from turnwise.scale.ray.transfer import Arrays, ModelSource, WorkerLog, lazy_tensors, to_arrays
from turnwise.trainer.learning import policy_weights
from turnwise.trainer.state import seed_generators

ray = import_extra("ray", "ray")

_GROUP_TIMEOUT = timedelta(minutes=30)

ArrayState: TypeAlias = tuple[Arrays, Arrays]
"""The fields of a `LearnerState`."""


class LearnerWorker:
    """A Ray actor. Its calls run in order; `ping` runs concurrently."""

    def __init__(self, rank: int, num_workers: int) -> None:
        self._rank = rank
        self._num_workers = num_workers

    def ping(self) -> int:
        """Return the process id."""
        return os.getpid()

    def open(self) -> tuple[str, int]:
        """Open the rendezvous store of the group, and return its address."""
        self._store = TCPStore(
            "0.0.0.0", 0, self._num_workers, is_master=True, wait_for_workers=False
        )
        return ray.util.get_node_ip_address(), int(self._store.port)

    def join(
        self,
        address: tuple[str, int] | None,
        config: ConfigStore,
        source: ModelSource,
        algorithm: Algorithm,
    ) -> None:
        """Join the process group, and build the learner."""
        self._log = WorkerLog(config.logging.level)
        seed_generators(derive_seed(config.training.seed, "learner", self._rank))
        model = source.load(in_parts=address is not None)
        context_size: int | None = None
        if address is not None:
            if self._rank:
                self._store = TCPStore(*address, self._num_workers, is_master=False)
            device = model_device(model)
            if device.type == "cuda":
                torch.cuda.set_device(device)
            torch.distributed.init_process_group(
                "nccl" if device.type == "cuda" else "gloo",
                store=self._store,
                rank=self._rank,
                world_size=self._num_workers,
                timeout=_GROUP_TIMEOUT,
            )
            context_size = config.ray.context_parallel_size
        self._learner = make_learner(config, model, algorithm=algorithm, context_size=context_size)

    def load(self, state: ArrayState) -> None:
        self._learner.load_state(LearnerState(*map(lazy_tensors, state)))

    def learn(self, call: tuple[Any, ...], options: LearnerOptions) -> Any:
        """Update or imitate; returns (metrics, log-probs, log lines), and a shard of the policy."""
        method, *arguments = call
        learner = self._learner
        learner.options = options
        metrics = getattr(learner, method)(*arguments)
        assert learner.log_probs_before_update is not None
        report = (metrics, learner.log_probs_before_update.cpu().numpy(), self._log.take())
        return report, self.policy()

    def policy(self) -> Arrays:
        """Return a shard of the policy's weights, with merged adapters."""
        return to_arrays(local_shards(policy_weights(self._learner)))

    def call(self, method: str) -> Any:
        return getattr(self._learner, method)()

    def state(self) -> ArrayState:
        return state_arrays(self._learner.state())

    def score(self, method: str, batch: PPOBatch) -> list[torch.Tensor | None]:
        """Call a method that scores a batch; return its tensor, or each field of its `Outputs`."""
        scored = getattr(self._learner, method)(batch)
        grids = vars(scored).values() if isinstance(scored, Outputs) else [scored]
        return [None if grid is None else grid.cpu() for grid in grids]


def state_arrays(state: LearnerState) -> ArrayState:
    return to_arrays(state.weights), to_arrays(state.rest)
