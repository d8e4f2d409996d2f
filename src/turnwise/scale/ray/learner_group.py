"""`LearnerGroup`: the learner workers. If one dies, all restart from their last state."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from turnwise.algo import Algorithm
from turnwise.config import ConfigStore
from turnwise.errors import import_extra
from turnwise.scale.ray.cluster import Cluster
from turnwise.scale.ray.episode_worker import ModelSource
from turnwise.scale.ray.failures import (
    SECONDS_BETWEEN_CALLS,
    SECONDS_TO_ANSWER,
    Failures,
    WorkerLost,
    is_loss,
    own_error,
)
from turnwise.scale.ray.learner_worker import LearnerWorker

ray = import_extra("ray", "ray")

RemoteCall: TypeAlias = Callable[[Any, int], Any]
"""Calls a method of an actor that has this rank."""

_SECONDS_TO_DIE = 20.0
"""Until Ray reports a dead learner, which its peers notice earlier."""
_MAX_REPLAYED = 10
"""Updates that are repeated at most after a loss. A state is several times as large as the weights,
and sending it can take longer than an update; the batches are small."""


class LearnerGroup:
    """Learner workers that form a torch.distributed group.

    A group with a dead member cannot continue: all workers are replaced and load the last states
    from the object store; they repeat the updates since, and the call that was interrupted.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: ConfigStore,
        source: ModelSource,
        algorithm: Algorithm,
        failures: Failures,
    ) -> None:
        self.num_workers = settings.ray.num_learners
        self.context_size = settings.ray.context_parallel_size
        """Adjacent workers that split the tokens of each pack, and so have the same episodes."""
        self._states: Sequence[Any] | None = None
        """The states from which a new group starts, a shard for each worker."""
        self._is_whole = False
        """Whether the states are all that the workers have to load."""
        self._updates: list[RemoteCall] = []
        """The updates since those states."""
        self._cluster = cluster
        self._settings = settings
        self._source = ray.put(source)
        self._algorithm = algorithm
        self._failures = failures
        self._actors: list[Any] = []

    def pids(self) -> list[int]:
        """Return the process ids of the workers."""
        found: list[int] = ray.get(self._pings(), timeout=SECONDS_TO_ANSWER)
        return found

    def load(self, states: Sequence[Any], *, is_whole: bool = True) -> None:
        """Load a state, a shard into each worker, or what differs from the state of the start."""
        self._states, self._updates, self._is_whole = states, [], is_whole
        self.call_all(lambda actor, rank: actor.load.remote(states[rank]))

    def learn(self, call: RemoteCall) -> list[Any]:
        """Run an update on every worker, and remember it for a replacement."""
        references = self.call_all(call)
        self._updates.append(call)
        if len(self._updates) >= _MAX_REPLAYED:
            self.states()
        return references

    def states(self) -> Sequence[Any]:
        """Return the object references of their states, a shard of each."""
        if self._updates or not self._is_whole:
            self._states = self.call_all(lambda actor, rank: actor.state.remote())
            self._updates, self._is_whole = [], True
        assert self._states is not None
        return self._states

    def call_all(self, call: RemoteCall) -> list[Any]:
        """Call every worker, and return the result references when all are done."""
        while True:
            try:
                if not self._actors:
                    self._start()
                references = [call(actor, rank) for rank, actor in enumerate(self._actors)]
                self._wait(references)
            except WorkerLost as loss:
                self._failures.record("a learner", loss)
                self.close()
            else:
                self._failures.reset()
                return references

    def close(self) -> None:
        for actor in self._actors:
            with contextlib.suppress(Exception):
                ray.kill(actor)
        self._actors = []

    def _start(self) -> None:
        # A liveness check must not wait for an update.
        make = ray.remote(concurrency_groups={"liveness": 1})(LearnerWorker)
        for rank in range(self.num_workers):
            options = self._cluster.learner_options(rank)
            self._actors.append(make.options(**options).remote(rank, self.num_workers))
        address = None
        if self.num_workers > 1:
            opened = self._actors[0].open.remote()
            self._wait([opened])
            address = ray.get(opened)
        joined = [
            actor.join.remote(address, self._settings, self._source, self._algorithm)
            for actor in self._actors
        ]
        self._wait(joined)
        if self._states is not None:
            pairs = zip(self._actors, self._states, strict=True)
            self._wait([actor.load.remote(state) for actor, state in pairs])
        for call in self._updates:
            self._wait([call(actor, rank) for rank, actor in enumerate(self._actors)])

    def _wait(self, references: Sequence[Any]) -> None:
        """Wait until all are done; raises `WorkerLost` if a worker is gone or does not answer."""
        flat = [r[0] if isinstance(r, list) else r for r in references]
        waiting = list(flat)
        while waiting:
            done, waiting = ray.wait(waiting, timeout=SECONDS_BETWEEN_CALLS)
            for reference in done:
                try:
                    ray.get(reference)
                except Exception as error:
                    if is_loss(error):
                        raise WorkerLost(str(error)) from error
                    self._check_liveness(_SECONDS_TO_DIE)
                    raise own_error(error) from None
            if not done:
                self._check_liveness(SECONDS_TO_ANSWER)

    def _check_liveness(self, seconds: float) -> None:
        try:
            ray.get(self._pings(), timeout=seconds)
        except Exception as error:
            raise WorkerLost(f"it is gone or does not answer: {error}") from error

    def _pings(self) -> list[Any]:
        return [actor.ping.options(concurrency_group="liveness").remote() for actor in self._actors]
