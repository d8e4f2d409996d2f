"""Many episodes at once on one engine: none waits for another, and none is lost."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import gc
import logging
import threading
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

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
from turnwise.episode.types import EpisodeResult
from turnwise.episode.waiting import Watchdog
from turnwise.errors import ConfigError, TurnwiseError
from turnwise.inference import SamplingParams
from turnwise.inference.protocol import Engine
from turnwise.types import RolloutData, Trajectory

_NUMBERING = threading.Lock()
_GARBAGE = threading.Lock()
_FROZEN_AT_START = gc.get_freeze_count()  # Python 3.12 and newer set some objects aside themselves
_OBJECTS_BETWEEN = 20_000
"""New objects between two looks for garbage, where Python's own number is smaller."""
_LOG = logging.getLogger("turnwise")


class EpisodeFailed(TurnwiseError, RuntimeError):
    """An episode failed, and the policy is to stop then."""


@dataclass(frozen=True)
class EpisodeTask:
    """One episode that is asked for."""

    seed: int
    group: int = 0
    member: int = 0
    prompt: str = ""
    """Stands before the first observation."""
    task: Mapping[str, Any] | None = field(default=None, hash=False)
    """The row of a dataset to play: the environment's `task`, and the trajectory's."""
    part: str = ""
    """The environment of a mix that it is played in, by its name."""


@dataclass(repr=False)  # a long one would cost seconds: asyncio.run writes what it returns
class Collection(Sequence[EpisodeResult]):
    """The episodes that were asked for, in that order; a sequence of results."""

    results: list[EpisodeResult] = field(default_factory=list)
    dropped: list[EpisodeResult] = field(default_factory=list)
    """Those left out, whole groups of them, by the policy `drop_group`."""

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
        """What reward functions see: one trajectory for each agent."""
        return [agent.trajectory for result in self.results for agent in result.agents]

    @property
    def rollout(self) -> RolloutData:
        """The same as text, for reward functions: one trajectory for each agent."""
        return RolloutData(self.trajectories)

    @property
    def summary(self) -> EpisodeSummary:
        """Of all that were played, dropped ones included."""
        return EpisodeSummary.of([*self.results, *self.dropped])


class EpisodeCollector:
    """Plays episodes of one kind of environment, many at a time.

    `environment` is a name, a class, a factory or an instance: each episode gets a fresh one.
    Options can also be given by name: `EpisodeCollector(engine, Game, max_concurrency=64)`.
    Two runs with the same seeds give the same episodes, however many run at once and however long
    their environments take, if the engine is deterministic.

    In a mix of environments, `parts` has a collector for each of them, which says how the episodes
    of the tasks that name it are made and scored. Sampling, seed and concurrency are those of the
    whole.
    """

    def __init__(
        self,
        engine: Engine,
        environment: EnvironmentSource,
        options: CollectorOptions | None = None,
        *,
        config: EnvironmentConfig | dict[str, Any] | None = None,
        parts: Mapping[str, EpisodeCollector] | None = None,
        **more: Any,
    ) -> None:
        self.options = dataclasses.replace(options or CollectorOptions(), **more)
        self.setup = make_setup(engine, self.options)
        self._batch_reward = BatchReward.of(self.options.reward_fn, self.setup)
        self.make_environment: EnvironmentFactory = environment_factory(environment, config)
        self._num_groups = 0
        self._parts = dict(parts or {})

    async def collect(self, groups: int | Sequence[int], group_size: int = 1) -> Collection:
        """Play groups of episodes: so many, or one for each of these seeds.

        The members of a group start from the same seed and differ in what is sampled. Seeds that
        are not given follow from the collector's own, and are new in each call.
        """
        return await self.play(self.tasks(groups, group_size))

    def collect_sync(self, groups: int | Sequence[int], group_size: int = 1) -> Collection:
        """`collect` for ordinary code."""
        return run_sync(self.collect(groups, group_size))

    def tasks(self, groups: int | Sequence[int], group_size: int = 1) -> list[EpisodeTask]:
        """The episodes of these groups."""
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
        """The same, but for how the model is sampled."""
        other = copy.copy(self)
        other.setup = copy.copy(self.setup)
        other.setup.sampling = sampling
        return other

    def part(self, name: str) -> EpisodeCollector:
        """The collector of an environment of a mix; without a mix, this one."""
        return self._parts[name] if self._parts else self

    def _setups_in_this_loop(self) -> dict[str, EpisodeSetup]:
        """The setup of each part; what episodes wait for is watched over all of them."""
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
        """Play these episodes, at most `max_concurrency` at a time; `on_result` sees each end.

        As many come back as were asked for, dropped ones included. Several threads may call it at
        once, each in an event loop of its own.
        """
        asked = list(tasks)
        results: list[EpisodeResult | None] = [None] * len(asked)
        waiting = iter(enumerate(asked))
        setups = self._setups_in_this_loop()

        async def work() -> None:
            for place, task in waiting:  # shared: whoever is free takes the next one
                player = self.part(task.part)
                results[place] = result = await player._play(task, setups[task.part])
                if on_result is not None:
                    on_result(result)

        with (
            _patient_garbage_collector(),
            Watchdog(setups[""].waits, self.options.report_after, self.options.stall_timeout),
        ):
            await together(work() for _ in range(min(self.options.max_concurrency, len(asked))))
        played = [result for result in results if result is not None]
        assert len(played) == len(asked), f"{len(asked)} were asked for, {len(played)} came back"
        return await self._finish(played)

    async def _finish(self, played: list[EpisodeResult]) -> Collection:
        """Scores the episodes by a reward function of batches, and applies the error policy."""
        await self.score_together(played)
        if self.options.on_error == "drop_group":
            return without_failed(played)
        return Collection(played)

    async def score_together(self, results: Sequence[EpisodeResult]) -> None:
        """Score these by a reward function of batches; any other has scored each at its end.

        In a mix, a batch has the episodes of one part.
        """
        for name, part in self._parts.items():
            await part.score_together([result for result in results if result.part == name])
        if self._parts:
            return
        if self._batch_reward is None:
            return
        await self._batch_reward.score(results)
        failed = next((result for result in results if result.status.is_error), None)
        if failed is not None and self.options.on_error == "fail":
            raise EpisodeFailed(f"{failed.status}: {failed.error}")

    async def _play(self, task: EpisodeTask, setup: EpisodeSetup) -> EpisodeResult:
        """One episode, as often as the policy allows."""
        num_abandoned = 0
        for attempt in range(1, self.options.num_attempts + 1):
            episode = Episode(
                setup,
                self.make_environment,
                seed=task.seed,
                group=task.group,
                member=task.member,
                attempt=attempt,
                prompt=task.prompt,
                task=task.task,
            )
            result = await episode.run()
            result.part = task.part
            result.abandoned_calls = num_abandoned = num_abandoned + result.abandoned_calls
            if not result.status.is_error:
                break
            if self.options.on_error == "fail":
                raise EpisodeFailed(
                    f"the episode with seed {task.seed} failed: {result.status}: {result.error}"
                )
            _LOG.info(
                "try %d of %d with seed %d failed: %s: %s",
                *(attempt, self.options.num_attempts, task.seed, result.status, result.error),
            )
        return result


@contextlib.contextmanager
def _patient_garbage_collector() -> Iterator[None]:
    """Let Python look for garbage less often, and only among what comes from now on.

    Episodes make many small objects that stay until the end; looking through them again and again,
    and through all that the libraries made, takes a fifth of the time of a turn.
    """
    # It is the whole process's: whoever comes while it is so leaves it to whoever made it so.
    with _GARBAGE:
        is_frozen = gc.get_freeze_count() > _FROZEN_AT_START
        before = None if is_frozen else gc.get_threshold()
        if before is not None:
            gc.freeze()
            gc.set_threshold(max(before[0], _OBJECTS_BETWEEN) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        if before is not None:
            with _GARBAGE:
                gc.set_threshold(*before)
                gc.unfreeze()


async def together(work: Iterable[typing.Coroutine[Any, Any, None]]) -> None:
    """Run all at once. The first error ends the others, each of which cleans up."""
    failure: BaseException | None = None

    async def run(one: typing.Coroutine[Any, Any, None]) -> None:
        try:
            await one
        except BaseException as error:
            if is_interrupt(error):
                raise
            # A group takes a task that ends by CancelledError for one that it cancelled itself.
            raise contained(error, "an episode") from None

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run(one)) for one in work]
            try:
                if tasks:
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            finally:  # those that are not done are cancelled by the group
                for task in tasks:
                    allow_abandoning(task)
    except BaseExceptionGroup as errors:
        failure = errors.exceptions[0]
    if failure is not None:
        raise failure


def without_failed(results: Sequence[EpisodeResult]) -> Collection:
    """What the policy `drop_group` leaves of these."""
    failed = {result.group for result in results if result.status.is_error}
    return Collection(
        [result for result in results if result.group not in failed],
        [result for result in results if result.group in failed],
    )


async def collect_async(
    engine: Engine,
    environment: EnvironmentSource,
    groups: int | Sequence[int],
    group_size: int = 1,
    **options: Any,
) -> Collection:
    """Play groups of episodes; `options` are those of `EpisodeCollector`."""
    return await EpisodeCollector(engine, environment, **options).collect(groups, group_size)


def collect(
    engine: Engine,
    environment: EnvironmentSource,
    groups: int | Sequence[int],
    group_size: int = 1,
    **options: Any,
) -> Collection:
    """`collect_async` for ordinary code."""
    return run_sync(collect_async(engine, environment, groups, group_size, **options))
