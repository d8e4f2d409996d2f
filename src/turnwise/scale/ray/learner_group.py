"""The learners, seen from the trainer: one dies, and all begin again from the last step."""

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

Ask: TypeAlias = Callable[[Any, int], Any]
"""Asks a worker, of this rank, for something."""

_SECONDS_TO_DIE = 20.0
"""The neighbours of a dead learner notice it before Ray does."""
_MOST_TO_REPEAT = 10
"""Updates that are done again at most. A state is several times as large as the weights, and to
hand it over can take longer than an update; what it is computed from is small."""


class LearnerGroup:
    """Learner workers that meet in a torch.distributed group.

    A group with a dead member cannot go on: all are replaced and given the last states, which lie
    in the object store; they repeat what was learned since, and do again what was under way.
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
        self._states: Sequence[Any] | None = None
        """What a new group begins from: a part for each."""
        self._learned: list[Ask] = []
        """What was asked of it since."""
        self._cluster = cluster
        self._settings = settings
        self._source = ray.put(source)
        self._algorithm = algorithm
        self._failures = failures
        self._actors: list[Any] = []

    def pids(self) -> list[int]:
        """The processes of the workers."""
        found: list[int] = ray.get(self._asked_to_answer(), timeout=SECONDS_TO_ANSWER)
        return found

    def load(self, states: Sequence[Any]) -> None:
        """Each becomes the learner with its part of a state."""
        self._states, self._learned = states, []
        self.call(lambda actor, rank: actor.load.remote(states[rank]))

    def learn(self, ask: Ask) -> list[Any]:
        """Ask for something that changes them."""
        references = self.call(ask)
        self._learned.append(ask)
        if len(self._learned) >= _MOST_TO_REPEAT:
            self.states()
        return references

    def states(self) -> Sequence[Any]:
        """Where their states lie now, a part of each."""
        if self._states is None or self._learned:
            self._states = self.call(lambda actor, rank: actor.state.remote())
            self._learned = []
        return self._states

    def call(self, ask: Ask) -> list[Any]:
        """Ask every worker; their references, when all of them are done."""
        while True:
            try:
                if not self._actors:
                    self._start()
                references = [ask(actor, rank) for rank, actor in enumerate(self._actors)]
                self._wait(references)
            except WorkerLost as loss:
                self._failures.note("a learner", loss)
                self.close()
            else:
                self._failures.wipe()
                return references

    def close(self) -> None:
        for actor in self._actors:
            with contextlib.suppress(Exception):
                ray.kill(actor)
        self._actors = []

    def _start(self) -> None:
        # Who asks whether it is there is not to wait until an update is done.
        make = ray.remote(concurrency_groups={"beside": 1})(LearnerWorker)
        first = self._settings.ray.num_actors
        for rank in range(self.num_workers):
            options = self._cluster.options(first + rank)
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
        for ask in self._learned:
            self._wait([ask(actor, rank) for rank, actor in enumerate(self._actors)])

    def _wait(self, references: Sequence[Any]) -> None:
        """Until all are done, or one of the workers is gone or does not answer."""
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
                    self._look_for_the_dead(_SECONDS_TO_DIE)
                    raise own_error(error) from None
            if not done:
                self._look_for_the_dead(SECONDS_TO_ANSWER)

    def _look_for_the_dead(self, seconds: float) -> None:
        try:
            ray.get(self._asked_to_answer(), timeout=seconds)
        except Exception as error:
            raise WorkerLost(f"it is gone or does not answer: {error}") from error

    def _asked_to_answer(self) -> list[Any]:
        return [actor.ping.options(concurrency_group="beside").remote() for actor in self._actors]
