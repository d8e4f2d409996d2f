"""`EpisodeCollector` plays many episodes at once on one engine; `run_episode` plays one."""

from __future__ import annotations

import asyncio
import copy
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, Protocol, TypeVar

from turnwise.config import EnvironmentConfig
from turnwise.deadlines import run_sync
from turnwise.env import BaseEnvironment, environment_factory
from turnwise.env.catalog import EnvironmentFactory, EnvironmentSource
from turnwise.episode.batch_reward import BatchReward
from turnwise.episode.episode import Episode
from turnwise.episode.options import CollectorOptions, EpisodeSetup, make_setup, with_options
from turnwise.episode.seeds import derive_seed
from turnwise.episode.types import EpisodeResult, EpisodeSummary, EpisodeTask
from turnwise.episode.watchdog import Watchdog
from turnwise.errors import ConfigError, TurnwiseError
from turnwise.inference import SamplingParams
from turnwise.inference.base import BaseInferenceEngine
from turnwise.reward import batch_type
from turnwise.types import RolloutData, Trajectory

T = TypeVar("T")
_NUMBERING = threading.Lock()
_LOG = logging.getLogger("turnwise")


class EpisodeFailed(TurnwiseError, RuntimeError):
    """An episode failed under the error policy `fail`."""


class PlayableEpisode(Protocol):
    """One episode, to be run once."""

    async def run(self) -> EpisodeResult: ...


class EpisodeSource(ABC):
    """Creates episodes that are not played in an environment, such as those of agents."""

    expert: Any = None
    """Can play in the model's place; None if there is no expert."""

    @abstractmethod
    def episode(
        self, setup: EpisodeSetup, task: EpisodeTask, attempt: int = 1, *, by_expert: bool = False
    ) -> PlayableEpisode:
        """Returns the episode of a task, which the model or an expert in its place plays."""


def no_environment() -> NoReturn:
    """The factory of episodes that have no environment."""
    raise ConfigError("this run's episodes are played by an agent; there is no environment")


class Collection(list[EpisodeResult]):
    """The results of a collection, in the order of its tasks."""

    def __init__(
        self, results: Iterable[EpisodeResult] = (), dropped: Iterable[EpisodeResult] = ()
    ) -> None:
        super().__init__(results)
        self.dropped = list(dropped)
        """The groups that the error policy `drop_group` left out."""

    def __repr__(self) -> str:  # asyncio.run calls it, and that of a list would take seconds
        return f"<{len(self)} episodes, {len(self.dropped)} dropped>"

    @property
    def trajectories(self) -> list[Trajectory]:
        """One trajectory for each agent, as reward functions get them."""
        return [agent.trajectory for result in self for agent in result.agents]

    @property
    def rollout(self) -> RolloutData:
        """The same trajectories as `RolloutData`."""
        return RolloutData(self.trajectories)

    @property
    def summary(self) -> EpisodeSummary:
        """The summary of all episodes, dropped ones included."""
        return EpisodeSummary.of([*self, *self.dropped])


class EpisodeCollector:
    """Plays episodes of one kind of environment, many at a time.

    `environment` is a name, a class, a factory or an instance: each episode gets a fresh one.
    Options can also be given by name: `EpisodeCollector(engine, Game, max_concurrency=64)`.
    Two runs with the same seeds give the same episodes, however many run at once and however long
    their environments take, if the engine is deterministic.

    In a mix of environments, `parts` has a collector for each of them, which creates and scores the
    episodes of its tasks. Sampling, seed and concurrency are this collector's.
    """

    def __init__(
        self,
        engine: BaseInferenceEngine,
        environment: EnvironmentSource | EpisodeSource,
        options: CollectorOptions | None = None,
        *,
        config: EnvironmentConfig | dict[str, Any] | None = None,
        parts: Mapping[str, EpisodeCollector] | None = None,
        **more: Any,
    ) -> None:
        self.options = with_options(options or CollectorOptions(), more)
        self.setup = make_setup(engine, self.options)
        kind = batch_type(self.options.reward_fn)
        self._batch_reward = None if kind is None else BatchReward(kind, self.setup)
        self.source = environment
        self.make_environment: EnvironmentFactory = (
            no_environment
            if isinstance(environment, EpisodeSource)
            else environment_factory(environment, config)
        )
        self._num_groups = 0
        self._parts = dict(parts or {})

    async def collect(self, groups: int | Sequence[int], group_size: int = 1) -> Collection:
        """Plays groups of episodes: a number of them, or one for each of these seeds.

        The members of a group start from the same seed and differ in what is sampled. A number of
        groups get new seeds in each call, derived from the collector's seed.
        """
        return await self.play(self.tasks(groups, group_size))

    def collect_sync(self, groups: int | Sequence[int], group_size: int = 1) -> Collection:
        """`collect` for synchronous code."""
        return run_sync(self.collect(groups, group_size))

    def tasks(self, groups: int | Sequence[int], group_size: int = 1) -> list[EpisodeTask]:
        """Returns the episodes of these groups."""
        if group_size < 1:
            raise ConfigError(f"group_size got {group_size}, expected at least 1")
        if isinstance(groups, int):
            if groups < 0:
                raise ConfigError(f"groups got {groups}, expected a number of them, or seeds")
            with _NUMBERING:
                first, self._num_groups = self._num_groups, self._num_groups + groups
            numbers = range(first, first + groups)
            groups = [derive_seed(self.setup.seed, "group", number) for number in numbers]
        return [
            EpisodeTask(seed, group, member)
            for group, seed in enumerate(groups)
            for member in range(group_size)
        ]

    def sampling_with(self, sampling: SamplingParams) -> EpisodeCollector:
        """Returns the same collector with other sampling parameters."""
        other = copy.copy(self)
        other.setup = self.setup.replaced(sampling=sampling)
        return other

    def part(self, name: str) -> EpisodeCollector:
        """Returns the collector of an environment of a mix; without a mix, this one."""
        return self._parts[name] if self._parts else self

    async def play(
        self, tasks: Iterable[EpisodeTask], on_result: Callable[[EpisodeResult], None] | None = None
    ) -> Collection:
        """Plays these episodes, at most `max_concurrency` at a time; `on_result` gets each result.

        There is one result for each task, dropped ones included. Several threads may call this at
        the same time, each in an event loop of its own.
        """
        waiting = list(tasks)
        results: dict[int, EpisodeResult] = {}
        numbered = enumerate(waiting)

        async def next_task() -> tuple[int, EpisodeTask] | None:
            return next(numbered, None)

        def keep(number: int, result: EpisodeResult) -> None:
            results[number] = result
            if on_result is not None:
                on_result(result)

        await self.play_from(next_task, keep, len(waiting))
        assert len(results) == len(waiting), f"{len(waiting)} tasks, {len(results)} results"
        return await self.finish([results[number] for number in range(len(waiting))])

    async def play_from(
        self,
        next_task: Callable[[], Awaitable[tuple[T, EpisodeTask] | None]],
        on_result: Callable[[T, EpisodeResult], None],
        num_tasks: int,
    ) -> None:
        """Plays the tasks that `next_task` returns, until it returns None.

        At most `max_concurrency` of them are played at a time, and `num_tasks`. `on_result` gets
        each result with what `next_task` returned beside its task.
        """
        shared = self.setup.in_this_loop(self.options.reward_concurrency)
        setups = {"": shared}
        for name, part in self._parts.items():
            setups[name] = part.setup.in_this_loop(self.options.reward_concurrency).replaced(
                sampling=shared.sampling, seed=shared.seed, waits=shared.waits
            )

        async def work() -> None:
            while (next_one := await next_task()) is not None:
                key, task = next_one
                setup, part = setups[task.part], self.part(task.part)
                if task.sampling_seed is not None:
                    setup = setup.replaced(seed=task.sampling_seed)
                num_abandoned = 0
                num_attempts = part.options.num_attempts
                for attempt in range(1, num_attempts + 1):
                    if isinstance(part.source, EpisodeSource):
                        result = await part.source.episode(setup, task, attempt).run()
                    else:
                        episode = Episode(setup, part.make_environment, task, attempt=attempt)
                        result = await episode.run()
                    result.abandoned_calls = num_abandoned = num_abandoned + result.abandoned_calls
                    if not result.status.is_error:
                        break
                    why = f"with seed {task.seed} failed: {result.status}: {result.error}"
                    if part.options.on_error == "fail":
                        raise EpisodeFailed(f"the episode {why}")
                    _LOG.info("attempt %d of %d %s", attempt, num_attempts, why)
                result.part = task.part
                on_result(key, result)

        num_workers = min(self.options.max_concurrency, num_tasks)
        with Watchdog(shared.waits, self.options.report_after, self.options.stall_timeout):
            async with TaskGroup() as group:
                for _ in range(num_workers):
                    group.create_task(work())

    async def finish(self, played: list[EpisodeResult]) -> Collection:
        """Scores the episodes by a reward function of batches, and applies the error policy."""
        await self.score_together(played)
        if self.options.on_error == "drop_group":
            return without_failed(played)
        return Collection(played)

    async def score_together(self, results: Sequence[EpisodeResult]) -> None:
        """Scores the episodes by a reward function of batches; others score each episode alone.

        In a mix, a batch has the episodes of one environment.
        """
        for name, part in self._parts.items():
            await part.score_together([result for result in results if result.part == name])
        if self._parts or self._batch_reward is None:
            return
        await self._batch_reward.score(results)
        failed = next((result for result in results if result.status.is_error), None)
        if failed is not None and self.options.on_error == "fail":
            raise EpisodeFailed(f"{failed.status}: {failed.error}")


class TaskGroup(asyncio.TaskGroup):
    """Raises the first error alone, not in a group, when the other tasks have cleaned up."""

    async def __aexit__(self, *raised: Any) -> None:
        try:
            await super().__aexit__(*raised)
            return
        except BaseExceptionGroup as errors:
            failure = errors.exceptions[0]
        raise failure  # outside of the block: the group is not its context


def without_failed(results: Sequence[EpisodeResult]) -> Collection:
    """Applies the error policy `drop_group`: groups with a failed episode are left out."""
    failed = {result.group for result in results if result.status.is_error}
    return Collection(
        [result for result in results if result.group not in failed],
        [result for result in results if result.group in failed],
    )


async def run_episode_async(
    engine: BaseInferenceEngine,
    environment: EnvironmentSource | None,
    *,
    seed: int = 0,
    prompt: str = "",
    task: Mapping[str, Any] | None = None,
    **options: Any,
) -> EpisodeResult:
    """Plays one episode. An environment that is given as an object is used and left open.

    `options` are fields of `EpisodeOptions`; `seed` is the environment's.
    """
    setup = make_setup(engine, **options)
    episode = Episode(
        setup, environment_source(environment), EpisodeTask(seed, prompt=prompt, task=task)
    )
    return await episode.run()


def environment_source(
    environment: EnvironmentSource | None,
) -> EnvironmentFactory | BaseEnvironment | None:
    """Returns an environment as it is, and a factory for a name, a class or a factory."""
    if environment is None or isinstance(environment, BaseEnvironment):
        return environment
    return environment_factory(environment)


def run_episode(
    engine: BaseInferenceEngine, environment: EnvironmentSource | None, **options: Any
) -> EpisodeResult:
    """`run_episode_async` for synchronous code, with the same options."""
    return run_sync(run_episode_async(engine, environment, **options))


def collect(
    engine: BaseInferenceEngine,
    environment: EnvironmentSource,
    groups: int | Sequence[int],
    group_size: int = 1,
    **options: Any,
) -> Collection:
    """Plays groups of episodes; `options` are those of `EpisodeCollector`."""
    return EpisodeCollector(engine, environment, **options).collect_sync(groups, group_size)
