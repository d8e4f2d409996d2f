"""Chooses and plays the episodes of a training step."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from turnwise.algo.choose import ADVANTAGE_ESTIMATORS, get_advantage_estimator
from turnwise.algo.records import AdvantageEstimator
from turnwise.config import ConfigStore
from turnwise.data import CustomEnvDataset
from turnwise.data.order import Draw, parts_for_step, rows_for_step
from turnwise.episode import Collection, EpisodeCollector, EpisodeResult
from turnwise.episode.seeds import derive_seed, training_seed
from turnwise.episode.types import EpisodeTask
from turnwise.errors import ConfigError
from turnwise.inference import SamplingParams
from turnwise.trainer.batches import scored_agents
from turnwise.trainer.curriculum import Curriculum, Task
from turnwise.trainer.stopping import Interrupted as Interrupted, StopRequest, run_unless_stopped

Rows: TypeAlias = Sequence[Task]
OnEpisode: TypeAlias = Callable[[int, int], None]
"""Called with the number of finished episodes, and of all."""

_DEFAULT_GROUP = 8


@dataclass(frozen=True)
class TaskSource:
    """Where the tasks of an environment come from: its rows, its curriculum, or only its seeds."""

    name: str = ""
    """The name of the environment in a mix; empty without a mix."""
    weight: float = 1.0
    rows: Rows | None = None
    curriculum: Curriculum | None = None


class Rollout:
    """Plays the episodes of steps. The same step of the same run always plays the same tasks."""

    def __init__(
        self,
        collector: EpisodeCollector,
        config: ConfigStore,
        sources: Sequence[TaskSource] = (TaskSource(),),
        estimator: AdvantageEstimator | None = None,
    ) -> None:
        self.collector = collector
        self.num_resampled = 0
        """Groups that the last step replaced."""
        self.zero_variance: dict[str, float] = {}
        """The share of groups with equal rewards before any was replaced: of all groups under the
        empty name, of each environment of a mix under its own. Empty without groups."""
        self._config = config
        self._estimator = estimator or get_advantage_estimator(config.training.adv_estimator)
        self._group_size = group_size(config, self._estimator)
        self._sources = list(sources)
        self._starts: dict[int, EpisodeTask] = {}
        """The first task of each group of the last step."""

    def play(self, step: int, stop: StopRequest, on_episode: OnEpisode | None = None) -> Collection:
        """Play the episodes of a step, counted from 0."""
        tasks = self._tasks(step)
        self._starts = {task.group: task for task in tasks if task.member == 0}
        collection = run_tasks(self.collector, tasks, stop, on_episode)
        zero_variance = zero_variance_groups(collection)
        self.num_resampled = 0
        self.zero_variance = {}
        if self._group_size > 1:
            self._measure_zero_variance(collection, set())
        for attempt in range(1, self._config.training.resample + 1):
            if not zero_variance or self._group_size == 1:
                break
            others = self._tasks(step, attempt, groups=sorted(zero_variance))
            replaced = run_tasks(self.collector, others, stop, on_episode)
            fresh = {r.group for r in replaced} - zero_variance_groups(replaced)
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

    def _measure_zero_variance(self, collection: Collection, replaced: set[int]) -> None:
        """Measure the share of groups with equal rewards, before others replaced them."""
        chosen = zero_variance_groups(collection) | replaced
        self.zero_variance = _shares(collection, chosen & {result.group for result in collection})

    def step_done(self) -> None:
        """Called when the learner has updated on the last step and published its weights."""

    def idle_shares(self) -> dict[str, float]:
        """Return the shares of the time since the last step in which something was idle."""
        return {}

    def baselines(self, stop: StopRequest) -> dict[str, float] | None:
        """Play a greedy episode from each start of the last step; return its agents' rewards.

        They are by `AgentRow.group`; those of an episode that failed are missing. None if the
        estimator does not need them; ReMax does.
        """
        if not self._estimator.needs_greedy_episode:
            return None
        collector = self.collector.sampling_with(SamplingParams(temperature=0.0))
        played = run_tasks(collector, list(self._starts.values()), stop)
        return {row.group: row.reward.total for row in scored_agents(played)}

    def _tasks(
        self, step: int, attempt: int = 0, groups: Sequence[int] | None = None
    ) -> list[EpisodeTask]:
        """Return the tasks of all members of these groups."""
        numbers = range(self._config.training.batch_size) if groups is None else groups
        starts = self._first_tasks("train", step, attempt, numbers)
        sampling_seed = None
        if any(_rows_have_seeds(source.rows) for source in self._sources):
            # These rows are played again with the same seed, in each epoch and where they replace
            # a group. Sampling must differ then.
            seed = self._config.training.seed
            sampling_seed = derive_seed(seed, "sampling", step, attempt)
        return [
            dataclasses.replace(start, member=member, sampling_seed=sampling_seed)
            for start in starts
            for member in range(self._group_size)
        ]

    def imitation_tasks(self, step: int) -> list[EpisodeTask]:
        """Return the tasks that the players of a warm start play in one of its steps."""
        starts = self._first_tasks("warm start", step, 0, range(self._config.training.batch_size))
        return [dataclasses.replace(start, group=0) for start in starts]

    def _first_tasks(
        self, purpose: str, step: int, attempt: int, numbers: Sequence[int]
    ) -> list[EpisodeTask]:
        """Return the first task of each of these groups: its environment, row and seed."""
        training = self._config.training
        attempts = (attempt,) if purpose == "train" else ()
        weights = [source.weight for source in self._sources]
        drawn = parts_for_step(weights, step, training.batch_size, training.seed)
        starts = {}
        for index, source in enumerate(self._sources):
            groups = [number for number in numbers if drawn[number].part == index]
            rows = self._chosen_rows(source, step, attempt, [drawn[group] for group in groups])
            for number, row in zip(groups, rows, strict=True):
                seed = training_seed(training.seed, purpose, step, *attempts, number)
                seed = seed_of(row, source.rows, seed)
                starts[number] = EpisodeTask(seed, number, task=row, part=source.name)
        return [starts[number] for number in numbers]

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
                    f"the curriculum chose {len(tasks)} tasks, expected {number}: one per group"
                )
            return tasks
        rows = source.rows
        if rows is None:
            return [None] * number
        if attempt:  # other rows than those of the groups with equal rewards
            return [rows[rng.randrange(len(rows))] for _ in range(number)]
        own_seed = derive_seed(seed, "part", *names) if names else seed
        return [rows[rows_for_step(len(rows), draw.number, 1, own_seed)[0]] for draw in drawn]


def seed_of(row: Task | None, rows: Rows | None, seed: int) -> int:
    """Return the seed of an episode; a row of a `CustomEnvDataset` has its own."""
    return int(row["seed"]) if row is not None and _rows_have_seeds(rows) else seed


def _rows_have_seeds(rows: Any) -> bool:
    return isinstance(getattr(rows, "source", rows), CustomEnvDataset)


def group_size(config: ConfigStore, estimator: AdvantageEstimator | None = None) -> int:
    """Return the number of episodes in a group; `estimator` defaults to that of the settings."""
    training = config.training
    estimator = estimator or get_advantage_estimator(training.adv_estimator)
    compares, size = estimator.needs_groups, training.group_size
    if size is None:
        return _DEFAULT_GROUP if compares else 1
    if compares and size == 1:
        names = {known.name: name for name, known in ADVANTAGE_ESTIMATORS.items()}
        raise ConfigError(
            f"training.group_size got 1, and the advantage estimator "
            f"{names.get(estimator.name, estimator.name)} compares the episodes of a group: "
            "nothing would be learned. Set it to 4 or more."
        )
    return size


def run_tasks(
    collector: EpisodeCollector,
    tasks: Sequence[EpisodeTask],
    stop: StopRequest,
    on_episode: OnEpisode | None = None,
) -> Collection:
    """Play tasks; raise `Interrupted` if a stop is requested before the end."""
    count = itertools.count(1)

    def report(result: EpisodeResult) -> None:
        if on_episode is not None:
            on_episode(next(count), len(tasks))

    return run_unless_stopped(collector.play(tasks, on_result=report), stop)


def _shares(results: Collection, chosen: set[int]) -> dict[str, float]:
    """Return the share of groups that are chosen, of all and of each environment of a mix."""
    environments = {result.group: result.part for result in results}
    shares = {"": len(chosen) / (len(environments) or 1)}
    for name in sorted({*environments.values()} - {""}):
        groups = {group for group, environment in environments.items() if environment == name}
        shares[name] = len(groups & chosen) / len(groups)
    return shares


def zero_variance_groups(results: Iterable[EpisodeResult]) -> set[int]:
    """Return the groups of several episodes with equal rewards, from which nothing is learned."""
    rewards: dict[int, list[float]] = {}
    for result in results:
        if result.reward is not None:
            rewards.setdefault(result.group, []).append(result.reward.total)
    return {
        group for group, earned in rewards.items() if len(earned) > 1 and min(earned) == max(earned)
    }
