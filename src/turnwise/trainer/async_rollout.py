"""`AsyncRollout`: episodes are played all the time, also while the learner updates."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from turnwise.algo.records import AdvantageEstimator
from turnwise.config import ConfigStore
from turnwise.episode import Collection, EpisodeCollector, EpisodeResult
from turnwise.episode.types import EpisodeTask
from turnwise.episode.watchdog import giving_up_blocked_loops
from turnwise.trainer.episode_thread import EpisodeCall
from turnwise.trainer.epochs import FitPlan
from turnwise.trainer.pacing import Draw, Pacer
from turnwise.trainer.rollout import OnEpisode, Rollout, TaskSource, zero_variance_groups
from turnwise.trainer.stopping import StopRequest, end_call, run_unless_stopped

_MAX_BLOCKS = 16
"""Blocks of drawn tasks that are kept."""


@dataclass
class _Group:
    """A group that is being played, or waits to be trained on."""

    draw: Draw
    tasks: list[EpisodeTask]
    """Those of the current attempt."""
    results: list[EpisodeResult] = field(default_factory=list)
    attempt: int = 0
    first: list[EpisodeResult] | None = None
    """The results of the first attempt, if they all had the same reward and others replace them."""
    first_tasks: list[EpisodeTask] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        return len(self.results) == len(self.tasks)

    @property
    def has_zero_variance(self) -> bool:
        return bool(zero_variance_groups(self.results))


Work: TypeAlias = tuple[_Group, EpisodeTask]


class IdleClock:
    """Measures how long things were idle, from one step to the next."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._engine_before = 0.0

    @contextlib.contextmanager
    def idle(self, what: str) -> Iterator[None]:
        """Count the time inside the block; it may overlap with others in the same thread."""
        started = time.monotonic()
        try:
            yield
        finally:
            self._seconds[what] += time.monotonic() - max(started, self._started)

    def shares(self, num_slots: int, engine_seconds: float | None) -> dict[str, float]:
        """Return the shares since the last call; `engine_seconds` is the engine's own count."""
        now = time.monotonic()
        passed, self._started = max(now - self._started, 1e-9), now
        seconds, self._seconds = self._seconds, defaultdict(float)
        shares = {
            "idle/learner": seconds["learner"] / passed,
            "idle/episodes": seconds["episodes"] / (passed * num_slots),
        }
        if engine_seconds is not None:
            shares["idle/engine"] = (engine_seconds - self._engine_before) / passed
            self._engine_before = engine_seconds
        return shares


class AsyncRollout(Rollout):
    """Plays episodes in the episode thread from its first step on until it is closed.

    A `Pacer` decides when groups start and which ones a step trains on: `play` waits until a step's
    groups are complete, and other groups go on while the learner works. The thread's event loop
    owns all that is not guarded by the lock.
    """

    def __init__(
        self,
        collector: EpisodeCollector,
        config: ConfigStore,
        sources: list[TaskSource],
        estimator: AdvantageEstimator,
        plan: FitPlan,
        *,
        step: int,
        state: Mapping[str, Any] | None = None,
        drawing: threading.Lock,
    ) -> None:
        super().__init__(collector, config, sources, estimator)
        self._pacer = Pacer(
            config.training.batch_size,
            config.training.max_staleness,
            version=step,
            num_updates=plan.num_steps,
        )
        if state is not None:
            self._pacer.load_state_dict(state)
        self._lock = threading.Lock()
        """Guards the pacer."""
        self._drawing = drawing
        """Held while tasks are drawn: a curriculum observes results in another thread."""
        self._groups: dict[Draw, _Group] = {}
        self._tasks_to_play: deque[Work] = deque()
        self._blocks: dict[int, list[list[EpisodeTask]]] = {}
        """Drawn tasks by block and place."""
        self._waiting: list[asyncio.Future[None]] = []
        """Idle workers, and `play`."""
        self._clock = IdleClock()
        self._failure: BaseException | None = None
        self._host: EpisodeCall[None] | None = None
        self._stop: StopRequest | None = None

    def play(self, step: int, stop: StopRequest, on_episode: OnEpisode | None = None) -> Collection:
        """Wait for the groups of this step, while others are played."""
        if self._host is None:
            assert stop.thread is not None, "a run that listens to signals has an episode thread"
            with giving_up_blocked_loops(stop.give_up):
                self._host, self._stop = stop.thread.submit(self._play_all_the_time()), stop
            self.idle_shares()  # from now on
        with self._clock.idle("learner"):
            return run_unless_stopped(self._next_batch(on_episode), stop)

    def idle_shares(self) -> dict[str, float]:
        """Return the shares of the last step's time in which learner, engine and episodes waited.

        `idle/episodes` is that of the slots for episodes in which none was allowed to start.
        """
        engine_seconds = getattr(self.collector.setup.engine, "idle_seconds", None)
        return self._clock.shares(self._num_slots, engine_seconds)

    def step_done(self) -> None:
        with self._lock:
            self._pacer.updated()
        self._call_in_loop(self._wake_all)

    def close(self) -> None:
        """Cancel the running episodes; they are played again when the run is resumed."""
        host, stop = self._host, self._stop
        if host is None or stop is None or stop.thread is None:
            return
        self._host = None
        if not host.is_over:
            end_call(host, stop.thread, stop)

    def state_dict(self) -> dict[str, Any]:
        """Return which groups are still to be played, or played again."""
        with self._lock:
            return self._pacer.state_dict()

    # ---- in the episode thread ----

    async def _play_all_the_time(self) -> None:
        try:
            await self.collector.play_from(self._next_task, self._keep, self._num_slots)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # raised by `play`, where the learner waits
            self._failure = error
            self._wake_all()
            await asyncio.Event().wait()  # until the run ends

    @property
    def _num_slots(self) -> int:
        """How many episodes are played at once, if none has to wait."""
        most = self._pacer.batch_size * (self._pacer.max_staleness + 1) * self._group_size
        return min(most, self.collector.options.max_concurrency)

    async def _next_task(self) -> Work | None:
        """Return the next episode to play, as soon as one may start."""
        while not self._tasks_to_play:
            with self._lock:
                draw = self._pacer.start()
            if draw is None:
                with self._clock.idle("episodes"):
                    await self._change()
            else:
                group = self._groups[draw] = _Group(draw, self._drawn(draw))
                self._tasks_to_play.extend((group, task) for task in group.tasks)
        return self._tasks_to_play.popleft()

    def _drawn(self, draw: Draw) -> list[EpisodeTask]:
        """Return the tasks of a group. A block is drawn as a whole, as a synchronous step is."""
        if draw.block not in self._blocks:
            with self._drawing:
                tasks = self._tasks(draw.block)
            size = self._group_size
            groups = [tasks[start : start + size] for start in range(0, len(tasks), size)]
            self._blocks[draw.block] = groups
            while len(self._blocks) > _MAX_BLOCKS:
                del self._blocks[next(iter(self._blocks))]
        return self._blocks[draw.block][draw.place % len(self._blocks[draw.block])]

    def _keep(self, group: _Group, result: EpisodeResult) -> None:
        group.results.append(result)
        if group.is_complete and not self._plays_others(group):
            with self._lock:
                self._pacer.finish(group.draw)
        self._wake_all()

    def _plays_others(self, group: _Group) -> bool:
        """Play other tasks in place of a complete group with equal rewards; whether it does."""
        num_attempts = self._config.training.resample
        if self._group_size == 1:
            return False
        if group.has_zero_variance and group.attempt < num_attempts:
            if group.first is None:
                group.first, group.first_tasks = group.results, group.tasks
            group.attempt += 1
            # An own number for each place, or two groups of a block would get the same rows.
            number = group.draw.place * (num_attempts + 1) + group.attempt
            with self._drawing:
                group.tasks = self._tasks(group.draw.block, number, groups=[group.draw.place])
            group.results = []
            self._tasks_to_play.extend((group, task) for task in group.tasks)
            return True
        if group.has_zero_variance and group.first is not None:  # as good as any other attempt
            group.results, group.tasks, group.attempt = group.first, group.first_tasks, 0
        return False

    async def _next_batch(self, on_episode: OnEpisode | None) -> Collection:
        """Wait for the groups of the next update, and return their episodes."""
        total = self._pacer.batch_size * self._group_size
        while True:
            if self._failure is not None:
                raise self._failure
            if on_episode is not None:
                done = sum(len(group.results) for group in self._groups.values())
                on_episode(min(done, total), total)
            with self._lock:
                draws = self._pacer.next_batch()
            if draws is not None:
                return await self._take([self._groups.pop(draw) for draw in draws])
            await self._change()

    async def _take(self, groups: list[_Group]) -> Collection:
        """Return the episodes of these groups, numbered as those of a synchronous step."""
        results = []
        for number, group in enumerate(groups):
            for result in sorted(group.results, key=lambda result: result.member):
                result.group = number
                results.append(result)
        self._starts = {
            number: dataclasses.replace(group.tasks[0], group=number)
            for number, group in enumerate(groups)
        }
        collection = await self.collector.finish(results)
        self.num_resampled = sum(group.attempt > 0 for group in groups)
        self.zero_variance = {}
        if self._group_size > 1:
            replaced = {number for number, group in enumerate(groups) if group.first is not None}
            self._measure_zero_variance(collection, replaced)
        return collection

    async def _change(self) -> None:
        """Wait until an episode has ended, an update is done, or something has failed."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    def _wake_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def _call_in_loop(self, function: Any) -> None:
        thread = None if self._stop is None else self._stop.thread
        if thread is not None:
            thread.call_soon(function)
