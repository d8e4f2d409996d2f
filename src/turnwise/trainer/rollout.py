"""The episodes of a training step: which ones, and playing them."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from turnwise.algo.choose import get_advantage_estimator
from turnwise.config import ConfigStore
from turnwise.data import CustomEnvDataset
from turnwise.data.order import rows_for_step
from turnwise.deadlines import run_sync
from turnwise.episode import Collection, EpisodeCollector, EpisodeLimits, EpisodeResult
from turnwise.episode.collector import EpisodeTask
from turnwise.episode.seeds import derive_seed
from turnwise.errors import ConfigError
from turnwise.inference import SamplingParams
from turnwise.trainer.curriculum import Curriculum
from turnwise.trainer.stopping import StopRequest

Rows: TypeAlias = Sequence[Mapping[str, Any]]
OnEpisode: TypeAlias = Callable[[int, int], None]
"""Told how many episodes of how many are over."""

_DEFAULT_GROUP = 8


class Interrupted(Exception):
    """The episodes were called off; nothing of the step counts."""


class Rollout:
    """Plays what a step needs. The same step gives the same episodes, in whichever process."""

    def __init__(
        self,
        collector: EpisodeCollector,
        config: ConfigStore,
        rows: Rows | None = None,
        curriculum: Curriculum | None = None,
    ) -> None:
        self.collector = collector
        self.num_resampled = 0
        """Groups that the last step replaced."""
        self.zero_variance: float | None = None
        """The share of groups in which all earned the same, before any was replaced."""
        self._training = config.training
        self._group_size = group_size(config)
        self._rows = rows
        self._curriculum = curriculum
        self._on_episode: OnEpisode | None = None

    def play(self, step: int, stop: StopRequest, on_episode: OnEpisode | None = None) -> Collection:
        """The episodes of a step, counted from 0."""
        tasks = self._tasks(step)
        collection = self._played(tasks, stop, on_episode)
        dull = _dull_groups(collection)
        self.num_resampled = 0
        self.zero_variance = None
        if self._group_size > 1:
            num_groups = len({result.group for result in collection}) or 1
            self.zero_variance = len(dull) / num_groups
        for attempt in range(1, self._training.resample + 1):
            if not dull or self._group_size == 1:
                break
            others = self._tasks(step, attempt, groups=sorted(dull))
            replaced = self._played(others, stop, on_episode)
            fresh = {r.group for r in replaced} - _dull_groups(replaced)
            self.num_resampled += len(fresh)
            dull -= fresh
            collection = Collection(
                sorted(
                    [
                        *(r for r in collection if r.group not in fresh),
                        *(r for r in replaced if r.group in fresh),
                    ],
                    key=lambda result: (result.group, result.member),
                ),
                [*collection.dropped, *replaced.dropped],
            )
        return collection

    def baselines(self, step: int, stop: StopRequest) -> dict[int, float]:
        """The reward of the greedy episode from each start of a step: ReMax's baseline."""
        collector = self.collector.sampling_with(SamplingParams(temperature=0.0))
        tasks = [task for task in self._tasks(step) if task.member == 0]
        played = run_tasks(collector, tasks, stop)
        return {r.group: r.reward.total for r in played if r.reward is not None}

    def _played(
        self, tasks: Sequence[EpisodeTask], stop: StopRequest, on_episode: OnEpisode | None
    ) -> Collection:
        return run_tasks(self.collector, tasks, stop, on_episode)

    def _tasks(
        self, step: int, attempt: int = 0, groups: Sequence[int] | None = None
    ) -> list[EpisodeTask]:
        numbers = range(self._training.batch_size) if groups is None else groups
        rows = self._chosen_rows(step, attempt, len(numbers))
        return [
            EpisodeTask(self._seed(rows[place], step, attempt, group), group, member, task=rows[place])
            for place, group in enumerate(numbers)
            for member in range(self._group_size)
        ]

    def _seed(self, row: Mapping[str, Any] | None, step: int, attempt: int, group: int) -> int:
        if row is not None and isinstance(self._rows, CustomEnvDataset):
            return int(row["seed"])  # the environment's opening with this seed is the row
        return derive_seed(self._training.seed, "train", step, attempt, group)

    def _chosen_rows(
        self, step: int, attempt: int, number: int
    ) -> Sequence[Mapping[str, Any] | None]:
        rng = random.Random(derive_seed(self._training.seed, "rows", step, attempt))
        if self._curriculum is not None:
            tasks = list(self._curriculum.choose(number, rng))
            if len(tasks) != number:
                raise ConfigError(
                    f"the curriculum chose {len(tasks)} tasks, expected {number}: one a start"
                )
            return tasks
        if self._rows is None:
            return [None] * number
        if attempt:  # others than those that taught nothing
            return [self._rows[rng.randrange(len(self._rows))] for _ in range(number)]
        chosen = rows_for_step(
            len(self._rows), step, self._training.batch_size, self._training.seed
        )
        return [self._rows[row] for row in chosen]


def group_size(config: ConfigStore) -> int:
    """How many episodes start from the same place."""
    training = config.training
    compares = (
        "index" in inspect.signature(get_advantage_estimator(training.adv_estimator)).parameters
    )
    size = training.group_size
    if size is None:
        return _DEFAULT_GROUP if compares else 1
    if compares and size == 1:
        raise ConfigError(
            f"{training.adv_estimator} compares the episodes of a group, and training.group_size "
            "is 1: nothing would be learned. Take 4 or more."
        )
    return size


def limits_of(config: ConfigStore) -> EpisodeLimits:
    """The limits that the settings name; the others are as they are."""
    inference = config.inference
    return EpisodeLimits(
        max_turns=inference.max_turns if inference.multi_turn else 1,
        max_tokens_per_turn=inference.max_tokens,
    )


def run_tasks(
    collector: EpisodeCollector,
    tasks: Sequence[EpisodeTask],
    stop: StopRequest,
    on_episode: OnEpisode | None = None,
) -> Collection:
    """Play, unless a stop is asked for meanwhile."""
    count = itertools.count(1)

    def tell(result: EpisodeResult) -> None:
        if on_episode is not None:
            on_episode(next(count), len(tasks))

    async def play() -> Collection:
        loop, work = (
            asyncio.get_running_loop(),
            asyncio.ensure_future(collector.play(tasks, on_result=tell)),
        )
        with stop.calling_off(lambda: loop.call_soon_threadsafe(work.cancel)):
            try:
                return await work
            except asyncio.CancelledError:
                if not stop.is_wanted:
                    raise
        raise Interrupted

    return run_sync(play())


def _dull_groups(results: Collection) -> set[int]:
    """Groups of several in which all earned the same: they teach nothing."""
    rewards: dict[int, list[float]] = {}
    for result in results:
        if result.reward is not None:
            rewards.setdefault(result.group, []).append(result.reward.total)
    return {
        group for group, earned in rewards.items() if len(earned) > 1 and min(earned) == max(earned)
    }
