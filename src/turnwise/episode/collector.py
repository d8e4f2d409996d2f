"""`EpisodeCollector` plays many episodes at once on one engine, without losing any."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import gc
import logging
import threading
import typing
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol, TypeVar, overload

from turnwise.config import EnvironmentConfig
from turnwise.deadlines import allow_abandoning, contained, is_interrupt, run_sync
from turnwise.env import environment_factory
from turnwise.env.catalog import EnvironmentFactory, EnvironmentSource
from turnwise.episode.batch_reward import BatchReward
from turnwise.episode.episode import Episode
from turnwise.episode.options import CollectorOptions
from turnwise.episode.seeds import derive_seed
from turnwise.episode.setup import EpisodeSetup, make_setup
from turnwise.episode.summary import EpisodeSummary
from turnwise.episode.types import EpisodeResult, EpisodeTask
from turnwise.episode.watchdog import Watchdog
from turnwise.errors import ConfigError, TurnwiseError
from turnwise.inference import SamplingParams
from turnwise.inference.protocol import Engine
from turnwise.types import RolloutData, Trajectory

T = TypeVar("T")
_NUMBERING = threading.Lock()
_GARBAGE = threading.Lock()
_FROZEN_AT_START = gc.get_freeze_count()  # Python 3.12 and newer freeze some objects themselves
_GC_THRESHOLD = 20_000
"""New objects between two garbage collections, where Python's own threshold is smaller."""
_LOG = logging.getLogger("turnwise")


class EpisodeFailed(TurnwiseError, RuntimeError):
    """An episode failed under the error policy `fail`."""


class PlayableEpisode(Protocol):
    """One episode, to be run once."""

    async def run(self) -> EpisodeResult: ...


class EpisodeSource(ABC):
    """Creates episodes that are not played in an environment, such as those of agents."""

    @abstractmethod
    def episode(self, setup: EpisodeSetup, task: EpisodeTask, attempt: int) -> PlayableEpisode:
        """Returns the episode of a task."""

    @property
    def has_expert(self) -> bool:
        """Whether there is an expert that can play in the model's place."""
        return False

    @abstractmethod
    def expert_episode(self, setup: EpisodeSetup, task: EpisodeTask) -> PlayableEpisode:
        """Returns an episode of a task that an expert plays in the model's place."""


def no_environment() -> NoReturn:
    """The factory of episodes that have no environment."""
    raise ConfigError("this run's episodes are played by an agent; there is no environment")


@dataclass(repr=False)  # asyncio.run calls the repr of its result, which would take seconds
class Collection(Sequence[EpisodeResult]):
    """The results of a collection, in the order of its tasks."""

    results: list[EpisodeResult] = field(default_factory=list)
    dropped: list[EpisodeResult] = field(default_factory=list)
    """The groups that the error policy `drop_group` left out."""

    @overload
    def __getitem__(self, index: int) -> EpisodeResult: ...
    @overload
    def __getitem__(self, index: slice) -> list[EpisodeResult]: ...
    def __getitem__(self, index: int | slice) -> EpisodeResult | list[EpisodeResult]:
        return self.results[index]

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator[EpisodeResult]:
        return iter(self.results)

    def __repr__(self) -> str:
        return f"<{len(self.results)} episodes, {len(self.dropped)} dropped>"

    @property
    def trajectories(self) -> list[Trajectory]:
        """One trajectory for each agent, as reward functions get them."""
        return [agent.trajectory for result in self.results for agent in result.agents]

    @property
    def rollout(self) -> RolloutData:
        """The same trajectories as `RolloutData`."""
        return RolloutData(self.trajectories)

    @property
    def summary(self) -> EpisodeSummary:
        """The summary of all episodes, dropped ones included."""
        return EpisodeSummary.of([*self.results, *self.dropped])


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
        engine: Engine,
        environment: EnvironmentSource | EpisodeSource,
        options: CollectorOptions | None = None,
        *,
        config: EnvironmentConfig | dict[str, Any] | None = None,
        parts: Mapping[str, EpisodeCollector] | None = None,
        **more: Any,
    ) -> None:
        self.options = dataclasses.replace(options or CollectorOptions(), **more)
        self.setup = make_setup(engine, self.options)
        self._batch_reward = BatchReward.of(self.options.reward_fn, self.setup)
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
        other.setup = copy.copy(self.setup)
        other.setup.sampling = sampling
        return other

    def part(self, name: str) -> EpisodeCollector:
        """Returns the collector of an environment of a mix; without a mix, this one."""
        return self._parts[name] if self._parts else self

    def _setups_in_this_loop(self) -> dict[str, EpisodeSetup]:
        """Returns the setup of each environment; they share one count of what episodes wait for."""
        shared = self.setup.in_this_loop(self.options.reward_concurrency)
        setups = {"": shared}
        for name, part in self._parts.items():
            own = setups[name] = part.setup.in_this_loop(self.options.reward_concurrency)
            own.sampling, own.seed, own.waits = shared.sampling, shared.seed, shared.waits
        return setups

    async def play(
        self,
        tasks: Iterable[EpisodeTask],
        on_result: Callable[[EpisodeResult], None] | None = None,
    ) -> Collection:
        """Plays these episodes, at most `max_concurrency` at a time; `on_result` gets each result.

        There is one result for each task, dropped ones included. Several threads may call this at
        the same time, each in an event loop of its own.
        """
        asked = list(tasks)
        results: dict[int, EpisodeResult] = {}
        places = iter(range(len(asked)))

        async def next_task() -> tuple[int, EpisodeTask] | None:
            place = next(places, None)
            return None if place is None else (place, asked[place])

        def keep(place: int, result: EpisodeResult) -> None:
            results[place] = result
            if on_result is not None:
                on_result(result)

        await self.play_from(next_task, keep, len(asked))
        assert len(results) == len(asked), f"{len(asked)} tasks, {len(results)} results"
        return await self.finish([results[place] for place in range(len(asked))])

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
        setups = self._setups_in_this_loop()

        async def work() -> None:
            while (found := await next_task()) is not None:
                key, task = found
                setup = setups[task.part]
                if task.sampling_seed is not None:
                    setup = copy.copy(setup)
                    setup.seed = task.sampling_seed
                on_result(key, await self.part(task.part)._play(task, setup))

        with (
            _rare_garbage_collections(),
            Watchdog(setups[""].waits, self.options.report_after, self.options.stall_timeout),
        ):
            await together(work() for _ in range(min(self.options.max_concurrency, num_tasks)))

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

    def _episode(self, task: EpisodeTask, setup: EpisodeSetup, attempt: int) -> PlayableEpisode:
        if isinstance(self.source, EpisodeSource):
            return self.source.episode(setup, task, attempt)
        return Episode(setup, self.make_environment, task, attempt=attempt)

    async def _play(self, task: EpisodeTask, setup: EpisodeSetup) -> EpisodeResult:
        """Plays one episode, again after a failure if the error policy says so."""
        num_abandoned = 0
        for attempt in range(1, self.options.num_attempts + 1):
            result = await self._episode(task, setup, attempt).run()
            result.part = task.part
            result.abandoned_calls = num_abandoned = num_abandoned + result.abandoned_calls
            if not result.status.is_error:
                break
            if self.options.on_error == "fail":
                raise EpisodeFailed(
                    f"the episode with seed {task.seed} failed: {result.status}: {result.error}"
                )
            _LOG.info(
                "attempt %d of %d with seed %d failed: %s: %s",
                *(attempt, self.options.num_attempts, task.seed, result.status, result.error),
            )
        return result


@contextlib.contextmanager
def _rare_garbage_collections() -> Iterator[None]:
    """Makes garbage collections rarer, and limits them to objects that are created from now on.

    Episodes create many small objects that live until the end. Collecting among them again and
    again, and among all objects of the libraries, takes a fifth of the time of a turn.
    """
    # The garbage collector is the process's: a collection that finds it changed leaves it alone.
    with _GARBAGE:
        is_frozen = gc.get_freeze_count() > _FROZEN_AT_START
        before = None if is_frozen else gc.get_threshold()
        if before is not None:
            gc.freeze()
            gc.set_threshold(max(before[0], _GC_THRESHOLD) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        if before is not None:
            with _GARBAGE:
                gc.set_threshold(*before)
                gc.unfreeze()


async def together(work: Iterable[typing.Coroutine[Any, Any, None]]) -> None:
    """Runs all at once. The first error cancels the others, each of which cleans up."""
    failure: BaseException | None = None

    async def run(one: typing.Coroutine[Any, Any, None]) -> None:
        try:
            await one
        except BaseException as error:
            if is_interrupt(error):
                raise
            # A TaskGroup ignores a CancelledError, as if it had cancelled that task itself.
            raise contained(error, "an episode") from None

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run(one)) for one in work]
            try:
                if tasks:
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            finally:  # the group cancels those that are not done
                for task in tasks:
                    allow_abandoning(task)
    except BaseExceptionGroup as errors:
        failure = errors.exceptions[0]
    if failure is not None:
        raise failure


def without_failed(results: Sequence[EpisodeResult]) -> Collection:
    """Applies the error policy `drop_group`: groups with a failed episode are left out."""
    failed = {result.group for result in results if result.status.is_error}
    return Collection(
        [result for result in results if result.group not in failed],
        [result for result in results if result.group in failed],
    )
