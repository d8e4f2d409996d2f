"""Which tasks a step or an evaluation plays: seeds, rows of a dataset, or those of a curriculum."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from turnwise.algo.choose import ADVANTAGE_ESTIMATORS, AdvantageEstimator, get_advantage_estimator
from turnwise.config import ConfigStore
from turnwise.data import CustomEnvDataset
from turnwise.data.order import parts_for_step, rows_for_step
from turnwise.episode import Collection, EpisodeCollector, EpisodeResult
from turnwise.episode.seeds import derive_seed, held_out_seed, training_seed
from turnwise.episode.types import EpisodeTask
from turnwise.errors import ConfigError
from turnwise.inference import SamplingParams
from turnwise.trainer.learning import scored_agents
from turnwise.trainer.reporter import Metrics
from turnwise.trainer.stopping import StopRequest, run_unless_stopped

if TYPE_CHECKING:
    from turnwise.trainer.components import MixEnvironment

Task: TypeAlias = Mapping[str, Any]
Rows: TypeAlias = Sequence[Task]
OnEpisode: TypeAlias = Callable[[int, int], None]
"""Called with the number of finished episodes, and of all."""

GREEDY = SamplingParams(temperature=0.0)
_DEFAULT_GROUP = 8
_NUM_CURRICULUM_TASKS = 32


@runtime_checkable
class Curriculum(Protocol):
    """Chooses the tasks of a step, and observes their results.

    A task is the `task` of an environment when it is reset. Evaluations play all tasks of a
    sequence `tasks`, from easy to hard, if it has one.
    """

    def choose(self, num_tasks: int, rng: random.Random) -> Sequence[Task]:
        """Return one task for each group of the next step."""

    def observe(self, success: float, reward: float) -> None:
        """Observe the success rate and the mean reward of the step's episodes."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs, as JSON values."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


def evaluation_tasks(curriculum: Curriculum) -> list[Task] | None:
    """Return the tasks that evaluations of its run play: all its `tasks`, the hardest first.

    A curriculum without `tasks` is asked for those of a first step. None if that is not possible
    without changing it.
    """
    tasks = getattr(curriculum, "tasks", None)
    if tasks is not None:
        return list(reversed(tasks))
    with contextlib.suppress(Exception):  # of a user's code, or it cannot be copied
        return list(copy.deepcopy(curriculum).choose(_NUM_CURRICULUM_TASKS, random.Random(0)))
    return None


def check_curriculum(curriculum: Any) -> None:
    """Raise unless this is a curriculum or None."""
    is_one = isinstance(curriculum, Curriculum) and not isinstance(curriculum, type)
    if curriculum is not None and not is_one:
        raise ConfigError(
            f"curriculum got {curriculum!r:.80}, expected an object with the methods choose, "
            "observe, state_dict and load_state_dict, such as turnwise.Levels([...])."
        )


class Levels:
    """A list of tasks from easy to hard: a level up when most succeed, down when few do.

    >>> levels = Levels([{"size": 2}, {"size": 4}], up=0.8)
    >>> levels.observe(success=0.9, reward=1.0)
    >>> levels.choose(1, random.Random(0))
    [{'size': 4}]
    """

    def __init__(self, tasks: Sequence[Task], *, up: float = 0.8, down: float = 0.2) -> None:
        if not tasks:
            raise ConfigError("a curriculum needs at least one level, got none")
        if not 0 <= down < up <= 1:
            raise ConfigError(f"got up={up} and down={down}, expected 0 <= down < up <= 1")
        self.tasks = list(tasks)
        self.level = 0
        self._up = up
        self._down = down

    def choose(self, num_tasks: int, rng: random.Random) -> Sequence[Task]:
        return [self.tasks[self.level]] * num_tasks

    def observe(self, success: float, reward: float) -> None:
        if success >= self._up:
            self.level = min(self.level + 1, len(self.tasks) - 1)
        elif success <= self._down:
            self.level = max(self.level - 1, 0)

    def state_dict(self) -> dict[str, Any]:
        return {"level": self.level}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.level = min(int(state["level"]), len(self.tasks) - 1)


class Rollout:
    """Plays the episodes of steps. The same step of the same run always plays the same tasks."""

    def __init__(
        self,
        collector: EpisodeCollector,
        config: ConfigStore,
        parts: Sequence[MixEnvironment],
        estimator: AdvantageEstimator,
    ) -> None:
        self.collector = collector
        self._metrics: Metrics = {}
        """Groups that the last step replaced, and the share of groups with equal rewards before,
        also of each environment of a mix. Empty without groups."""
        self._config = config
        self._estimator = estimator
        self._group_size = group_size(config, estimator)
        self._parts = parts
        self._starts: dict[int, EpisodeTask] = {}
        """The first task of each group of the last step."""

    def play(self, step: int, stop: StopRequest, on_episode: OnEpisode | None = None) -> Collection:
        """Play the episodes of a step, counted from 0."""
        tasks = self._tasks(step)
        self._starts = {task.group: task for task in tasks if task.member == 0}
        collection = run_tasks(self.collector, tasks, stop, on_episode)
        equal = self._measure_zero_variance(collection)
        for attempt in range(1, self._config.training.resample + 1):
            if not equal:
                break
            others = self._tasks(step, attempt, groups=sorted(equal))
            played = run_tasks(self.collector, others, stop, on_episode)
            fresh = {result.group for result in played} - zero_variance_groups(played)
            self._starts |= {t.group: t for t in others if t.group in fresh and t.member == 0}
            self._metrics["num_resampled"] += len(fresh)
            equal -= fresh
            results = [result for result in collection if result.group not in fresh]
            results += [result for result in played if result.group in fresh]
            results.sort(key=lambda result: (result.group, result.member))
            collection = Collection(results, [*collection.dropped, *played.dropped])
        return collection

    def _measure_zero_variance(self, collection: Collection) -> set[int]:
        equal = zero_variance_groups(collection)
        if self._group_size == 1:
            return equal
        parts = {result.group: result.part for result in collection}
        self._metrics = {"zero_variance": len(equal) / (len(parts) or 1), "num_resampled": 0}
        for name in sorted({*parts.values()} - {""}):
            groups = {group for group, part in parts.items() if part == name}
            self._metrics[f"{name}/zero_variance"] = len(groups & equal) / len(groups)
        return equal

    def step_done(self) -> None:
        """Called when the learner has updated on the last step and published its weights."""

    def metrics(self) -> Metrics:
        """Return what the last step shows besides its episodes."""
        return dict(self._metrics)

    def baselines(self, stop: StopRequest) -> dict[str, float] | None:
        """Play a greedy episode from each start of the last step; return its agents' rewards.

        They are by `AgentRow.group`; those of an episode that failed are missing. None if the
        estimator does not need them; ReMax does.
        """
        if not self._estimator.needs_greedy_episode:
            return None
        collector = self.collector.sampling_with(GREEDY)
        played = run_tasks(collector, list(self._starts.values()), stop)
        return {row.group: row.reward.total for row in scored_agents(played)}

    def _tasks(
        self, step: int, attempt: int = 0, groups: Sequence[int] | None = None
    ) -> list[EpisodeTask]:
        """Return the tasks of all members of these groups, of all groups if none are named."""
        training = self._config.training
        numbers = range(training.batch_size) if groups is None else groups
        sampling_seed = None
        if any(_rows_have_seeds(part.components.train_rows) for part in self._parts):
            # Sampling must differ where such rows are played again, with the same seed.
            sampling_seed = derive_seed(training.seed, "sampling", step, attempt)
        return [
            dataclasses.replace(start, member=member, sampling_seed=sampling_seed)
            for start in self._first_tasks("train", step, attempt, numbers)
            for member in range(self._group_size)
        ]

    def imitation_tasks(self, step: int) -> list[EpisodeTask]:
        """Return the tasks of a step of a warm start."""
        starts = self._first_tasks("warm start", step, 0, range(self._config.training.batch_size))
        return [dataclasses.replace(start, group=0) for start in starts]

    def _first_tasks(
        self, purpose: str, step: int, attempt: int, numbers: Sequence[int]
    ) -> list[EpisodeTask]:
        training = self._config.training
        attempts = (attempt,) if purpose == "train" else ()
        weights = [part.weight for part in self._parts]
        drawn = parts_for_step(weights, step, training.batch_size, training.seed)
        starts = {}
        for index, part in enumerate(self._parts):
            groups = [number for number in numbers if drawn[number].part == index]
            names = (part.name,) if part.name else ()
            rng = random.Random(derive_seed(training.seed, "rows", step, attempt, *names))
            rows, curriculum = part.components.train_rows, part.given.curriculum
            chosen: Sequence[Task | None] = [None] * len(groups)
            if curriculum is not None and groups:
                chosen = list(curriculum.choose(len(groups), rng))
                if len(chosen) != len(groups):
                    raise ConfigError(
                        f"the curriculum chose {len(chosen)} tasks, expected {len(groups)}: one "
                        "per group"
                    )
            elif rows is not None and attempt:  # other rows than those of the groups to replace
                chosen = [rows[rng.randrange(len(rows))] for _ in groups]
            elif rows is not None:
                order = derive_seed(training.seed, "part", *names) if names else training.seed
                draws = [drawn[group].number for group in groups]
                chosen = [rows[rows_for_step(len(rows), draw, 1, order)[0]] for draw in draws]
            for number, row in zip(groups, chosen, strict=True):
                seed = training_seed(training.seed, purpose, step, *attempts, number)
                seed = episode_seed(row, rows, seed)
                starts[number] = EpisodeTask(seed, number, task=row, part=part.name)
        return [starts[number] for number in numbers]


def held_out_tasks(num_episodes: int, seed: int, rows: Rows | None = None) -> list[EpisodeTask]:
    """Return the tasks of an evaluation, the same each time.

    Where there are fewer rows than episodes, each row is played equally often: of 12 rows and 100
    episodes, 8 times. The episodes of a row are one group, which a confidence interval counts once.
    """
    tasks = []
    num_rows = num_episodes if rows is None else len(rows)
    for number in range(num_of_rows(num_episodes, num_rows)):
        repeat, index = divmod(number, num_rows)
        row = None if rows is None else rows[index]
        task_seed = episode_seed(row, rows, held_out_seed(seed, "eval", number))
        tasks.append(EpisodeTask(task_seed, index, repeat, task=row))
    return tasks


def num_of_rows(num_episodes: int, num_rows: int) -> int:
    """Return how many episodes are played on this many rows, if `num_episodes` are requested.

    >>> num_of_rows(100, 12), num_of_rows(100, 500)
    (96, 100)
    """
    return num_episodes if num_episodes < num_rows else num_episodes // num_rows * num_rows


def episode_seed(row: Task | None, rows: Rows | None, seed: int) -> int:
    """Return the seed of an episode; a row of a `CustomEnvDataset` has its own."""
    return int(row["seed"]) if row is not None and _rows_have_seeds(rows) else seed


def _rows_have_seeds(rows: Any) -> bool:
    return isinstance(getattr(rows, "dataset", rows), CustomEnvDataset)


def group_size(config: ConfigStore, estimator: AdvantageEstimator | None = None) -> int:
    """Return the number of episodes in a group; `estimator` defaults to that of the settings."""
    training = config.training
    estimator = estimator or get_advantage_estimator(training.adv_estimator)
    compares, size = estimator.needs_groups, training.group_size
    if size is None:
        return _DEFAULT_GROUP if compares else 1
    if compares and size == 1:
        names = {known.name: name for name, known in ADVANTAGE_ESTIMATORS.items()}
        name = names.get(estimator.name, estimator.name)
        raise ConfigError(
            f"training.group_size got 1, and the advantage estimator {name} compares the episodes "
            "of a group: nothing would be learned. Set it to 4 or more."
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


def zero_variance_groups(results: Iterable[EpisodeResult]) -> set[int]:
    """Return the groups of several episodes with equal rewards, from which nothing is learned."""
    rewards: dict[int, list[float]] = {}
    for result in results:
        if result.reward is not None:
            rewards.setdefault(result.group, []).append(result.reward.total)
    return {
        group for group, earned in rewards.items() if len(earned) > 1 and min(earned) == max(earned)
    }
