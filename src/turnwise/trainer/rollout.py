"""The episodes of a training step: which ones, and playing them."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

from turnwise.algo.choose import get_advantage_estimator
from turnwise.algo.records import AdvantageEstimator
from turnwise.config import ConfigStore
from turnwise.data import CustomEnvDataset
from turnwise.data.order import Draw, parts_for_step, rows_for_step
from turnwise.episode import Collection, EpisodeCollector, EpisodeLimits, EpisodeResult
from turnwise.episode.seeds import derive_seed, training_seed
from turnwise.episode.types import EpisodeTask
from turnwise.errors import ConfigError
from turnwise.inference import SamplingParams
from turnwise.trainer.curriculum import Curriculum, Task
from turnwise.trainer.epochs import FitPlan
from turnwise.trainer.stopping import Interrupted as Interrupted, StopRequest, run_unless_stopped

Rows: TypeAlias = Sequence[Task]
OnEpisode: TypeAlias = Callable[[int, int], None]
"""Told how many episodes of how many are over."""

_DEFAULT_GROUP = 8


@dataclass(frozen=True)
class TaskSource:
    """Where the tasks of an environment come from: its rows, its curriculum, or its seeds alone."""

    name: str = ""
    """Of the environment in a mix; empty without a mix."""
    weight: float = 1.0
    rows: Rows | None = None
    curriculum: Curriculum | None = None


class Rollout:
    """Plays what a step needs. The same step gives the same episodes, in whichever process."""

    def __init__(
        self,
        collector: EpisodeCollector,
        config: ConfigStore,
        rows: Rows | None = None,
        curriculum: Curriculum | None = None,
        *,
        estimator: AdvantageEstimator | None = None,
        plan: FitPlan | None = None,
        mix: Sequence[TaskSource] = (),
    ) -> None:
        self.collector = collector
        self.plan = plan
        """Where the run ends and is saved, for who plays ahead; None: nobody does."""
        self.num_resampled = 0
        """Groups that the last step replaced."""
        self.zero_variance: dict[str, float] = {}
        """The share of groups in which all earned the same, before any was replaced: of all groups
        under the empty name, of each environment of a mix under its own. Empty without groups."""
        self._config = config
        self._estimator = estimator
        self._group_size = group_size(config, estimator)
        self._sources = list(mix) or [TaskSource(rows=rows, curriculum=curriculum)]
        self._starts: dict[int, EpisodeTask] = {}
        """Where each group of the last step started."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel what may be under way; here nothing ever is."""

    def snapshot(self, collector: EpisodeCollector) -> Rollout:
        """Return a rollout of the same tasks with curricula as they are now."""
        sources = [
            dataclasses.replace(source, curriculum=copy.deepcopy(source.curriculum))
            for source in self._sources
        ]
        return Rollout(
            collector, self._config, plan=self.plan, mix=sources, estimator=self._estimator
        )

    def play(self, step: int, stop: StopRequest, on_episode: OnEpisode | None = None) -> Collection:
        """The episodes of a step, counted from 0."""
        tasks = self._tasks(step)
        self._starts = {task.group: task for task in tasks if task.member == 0}
        collection = self._played((step, 0), tasks, stop, on_episode)
        zero_variance = _zero_variance_groups(collection)
        self.num_resampled = 0
        self.zero_variance = _shares(collection, zero_variance) if self._group_size > 1 else {}
        for attempt in range(1, self._config.training.resample + 1):
            if not zero_variance or self._group_size == 1:
                break
            others = self._tasks(step, attempt, groups=sorted(zero_variance))
            replaced = self._played((step, attempt), others, stop, on_episode)
            fresh = {r.group for r in replaced} - _zero_variance_groups(replaced)
            self._starts |= {t.group: t for t in others if t.group in fresh and t.member == 0}
            self.num_resampled += len(fresh)
            zero_variance -= fresh
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

    def baselines(self, stop: StopRequest) -> dict[int, float]:
        """The reward of the greedy episode from each start of the last step: ReMax's baseline."""
        collector = self.collector.sampling_with(SamplingParams(temperature=0.0))
        played = run_tasks(collector, list(self._starts.values()), stop)
        return {r.group: r.reward.total for r in played if r.reward is not None}

    def _played(
        self,
        names: tuple[int, int],
        tasks: Sequence[EpisodeTask],
        stop: StopRequest,
        on_episode: OnEpisode | None,
    ) -> Collection:
        """The episodes of these tasks; `names` are step and attempt."""
        collector = self.collector
        if any(_are_openings(source.rows) for source in self._sources):
            # An opening comes again with its seed: each epoch, and where it replaces a group that
            # taught nothing. What is sampled then is to be new.
            collector = collector.sampling_with(collector.setup.sampling)
            collector.setup.seed = derive_seed(self._config.training.seed, "sampling", *names)
        return run_tasks(collector, tasks, stop, on_episode)

    def _tasks(
        self, step: int, attempt: int = 0, groups: Sequence[int] | None = None
    ) -> list[EpisodeTask]:
        """All members of these groups; a group is played in one environment of a mix."""
        numbers = range(self._config.training.batch_size) if groups is None else groups
        starts = self._starts_of("train", step, attempt, numbers)
        return [
            dataclasses.replace(start, member=member)
            for start in starts
            for member in range(self._group_size)
        ]

    def imitation_tasks(self, step: int) -> list[EpisodeTask]:
        """What the players of a warm start play in one of its steps."""
        starts = self._starts_of("warm start", step, 0, range(self._config.training.batch_size))
        return [dataclasses.replace(start, group=0) for start in starts]

    def _starts_of(
        self, purpose: str, step: int, attempt: int, numbers: Sequence[int]
    ) -> list[EpisodeTask]:
        """Where each of these groups starts: its environment, its row and its seed."""
        training = self._config.training
        attempts = (attempt,) if purpose == "train" else ()
        drawn = self._drawn(step)
        starts = {}
        for part, source in enumerate(self._sources):
            own = [number for number in numbers if drawn[number].part == part]
            rows = self._chosen_rows(source, step, attempt, [drawn[number] for number in own])
            for number, row in zip(own, rows, strict=True):
                seed = training_seed(training.seed, purpose, step, *attempts, number)
                seed = seed_of(row, source.rows, seed)
                starts[number] = EpisodeTask(seed, number, task=row, part=source.name)
        return [starts[number] for number in numbers]

    def _drawn(self, step: int) -> list[Draw]:
        """Which environment each group of a step is played in, and how many it had before."""
        weights = [source.weight for source in self._sources]
        return parts_for_step(
            weights, step, self._config.training.batch_size, self._config.training.seed
        )

    def _chosen_rows(
        self, source: TaskSource, step: int, attempt: int, drawn: Sequence[Draw]
    ) -> Sequence[Task | None]:
        seed, number = self._config.training.seed, len(drawn)
        names = (source.name,) if source.name else ()
        rng = random.Random(derive_seed(seed, "rows", step, attempt, *names))
        if source.curriculum is not None and number:
            tasks = list(source.curriculum.choose(number, rng))
            if len(tasks) != number:
                raise ConfigError(
                    f"the curriculum chose {len(tasks)} tasks, expected {number}: one a start"
                )
            return tasks
        rows = source.rows
        if rows is None:
            return [None] * number
        if attempt:  # others than those that taught nothing
            return [rows[rng.randrange(len(rows))] for _ in range(number)]
        own_seed = derive_seed(seed, "part", *names) if names else seed
        return [rows[rows_for_step(len(rows), draw.number, 1, own_seed)[0]] for draw in drawn]


def seed_of(row: Task | None, rows: Rows | None, seed: int) -> int:
    """The seed of an episode; a row that is an environment's opening brings its own."""
    return int(row["seed"]) if row is not None and _are_openings(rows) else seed


def _are_openings(rows: Any) -> bool:
    return isinstance(getattr(rows, "source", rows), CustomEnvDataset)


def group_size(config: ConfigStore, estimator: AdvantageEstimator | None = None) -> int:
    """How many episodes start from the same place; `estimator` if Python chose another."""
    training = config.training
    estimator = estimator or get_advantage_estimator(training.adv_estimator)
    compares, size = estimator.needs_groups, training.group_size
    if size is None:
        return _DEFAULT_GROUP if compares else 1
    if compares and size == 1:
        raise ConfigError(
            f"the advantage estimator {estimator.name} compares the episodes of a group, and "
            "training.group_size is 1: nothing would be learned. Take 4 or more."
        )
    return size


def limits_of(config: ConfigStore) -> EpisodeLimits:
    """The limits that the settings name."""
    inference, limits = config.inference, dataclasses.asdict(config.limits)
    turns = limits.pop("max_turns") or inference.max_turns
    return EpisodeLimits(
        max_turns=turns if inference.multi_turn else 1,
        max_tokens_per_turn=limits.pop("max_tokens_per_turn") or inference.max_tokens,
        **limits,
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

    return run_unless_stopped(collector.play(tasks, on_result=tell), stop)


def _shares(results: Collection, chosen: set[int]) -> dict[str, float]:
    """The share of groups that are chosen, of all and of each environment of a mix."""
    parts = {result.group: result.part for result in results}
    found = {"": len(chosen) / (len(parts) or 1)}
    for name in sorted({*parts.values()} - {""}):
        own = {group for group, part in parts.items() if part == name}
        found[name] = len(own & chosen) / len(own)
    return found


def _zero_variance_groups(results: Collection) -> set[int]:
    """Groups of several in which all earned the same: they teach nothing."""
    rewards: dict[int, list[float]] = {}
    for result in results:
        if result.reward is not None:
            rewards.setdefault(result.group, []).append(result.reward.total)
    return {
        group for group, earned in rewards.items() if len(earned) > 1 and min(earned) == max(earned)
    }
