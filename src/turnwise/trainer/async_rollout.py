"""`AsyncRollout`: episodes are played all the time, also while the learner updates."""

import asyncio
import contextlib
import dataclasses
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from turnwise.algo.choose import AdvantageEstimator
from turnwise.config import ConfigStore
from turnwise.deadlines import LoopCall
from turnwise.episode import Collection, EpisodeCollector, EpisodeResult
from turnwise.episode.types import EpisodeTask
from turnwise.episode.watchdog import giving_up_blocked_loops
from turnwise.trainer.components import MixEnvironment
from turnwise.trainer.reporter import Metrics
from turnwise.trainer.rollout import OnEpisode, Rollout
from turnwise.trainer.stopping import StopRequest, end_call, run_unless_stopped

_MAX_BLOCKS = 16
"""Blocks of drawn tasks that are kept."""


class Draw(NamedTuple):
    """A group to play: the block of the task order that it belongs to, and its number in it.

    Synchronous step n plays block n. Block and number give the group's task and seeds.
    """

    block: int
    number: int


class Pacer:
    """Decides when groups start, and which ones an update trains on. It knows no clock.

    A group that starts after update v may be trained on by the updates v to v + `max_staleness`.
    It starts only if all groups that have started can be trained on in time, whatever the order in
    which they finish. So no group is ever too old: none is dropped, and slow tasks are trained on
    as often as fast ones.

    The rules, with B groups per update and v updates done:

    - A group starts while fewer groups have started than the updates that may train on it take:
      B x (max_staleness + 1) before the next update, B x max_staleness while it is computed.
    - Not all of them start: groups that wait for the learner only become older. A window limits
      them, which grows whenever the learner had to wait for a batch and shrinks when it had not.
    - The next update takes the B oldest finished groups, as soon as the others can still be trained
      on in time: of those that the updates up to d must take, at most B x (d - v) may be left.
      Until then it waits for older groups to finish.

    With a staleness of 0 these are synchronous steps. Taking the oldest groups first is optimal
    here: if any choice of finished groups leaves enough time for the others, this one does.

    `num_updates` is the number of updates after which the run ends: no group starts that no update
    would train on. Only one thread may use a pacer.
    """

    def __init__(
        self, batch_size: int, max_staleness: int, *, version: int = 0, num_updates: int
    ) -> None:
        self.batch_size = batch_size
        self.max_staleness = max_staleness
        self.version = version
        """Updates that are done."""
        self.num_updates = num_updates
        self._batch: list[Draw] = []
        """The groups that are being trained on."""
        self._next = Draw(version, 0)
        self._again: deque[Draw] = deque()
        """Groups that had started when the run was interrupted; they start before new ones."""
        self._started: dict[Draw, int] = {}
        """Groups that have started and are not trained on, in the order in which they started,
        each with the updates that were done then."""
        self._finished: set[Draw] = set()
        """Those of them whose episodes have all ended."""
        self._window = 2 * batch_size
        self._has_waited = False
        """Whether the learner has to wait for its next batch."""

    def start(self) -> Draw | None:
        """Start the next group; return None if none may start now."""
        # The update that is being computed has its batch already.
        updates_left = min(self.max_staleness + 1, self.num_updates - self.version)
        limit = self.batch_size * (updates_left - bool(self._batch))
        if len(self._started) >= min(limit, self._window):
            return None
        if self._again:
            draw = self._again.popleft()
        else:
            draw = self._next
            is_last = draw.number + 1 >= self.batch_size
            self._next = Draw(draw.block + 1, 0) if is_last else Draw(draw.block, draw.number + 1)
        self._started[draw] = self.version
        return draw

    def finish(self, draw: Draw) -> None:
        """Record that all episodes of a group have ended."""
        self._finished.add(draw)

    def next_batch(self) -> list[Draw] | None:
        """Return the groups of the next update, the oldest first; None if it has to wait.

        They are removed: each group is trained on once.
        """
        assert not self._batch, "the update on the last batch is not done"
        batch = [draw for draw in self._started if draw in self._finished][: self.batch_size]
        chosen = set(batch)
        left = sorted(version for draw, version in self._started.items() if draw not in chosen)
        # Whether later updates can train on all other groups in time.
        can_wait = all(
            number <= self.batch_size * (version + self.max_staleness - self.version)
            for number, version in enumerate(left, 1)
        )
        if len(batch) < self.batch_size or not can_wait:
            self._has_waited = True
            return None
        change = self.batch_size if self._has_waited else -max(self.batch_size // 16, 1)
        largest = self.batch_size * (self.max_staleness + 1)
        self._window = min(max(self._window + change, self.batch_size), largest)
        self._has_waited = False
        for draw in batch:
            del self._started[draw]
            self._finished.remove(draw)
        self._batch = batch
        return batch

    def updated(self) -> None:
        """Record that the update on the last batch is done."""
        self.version += 1
        self._batch = []

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs: what was not trained on is played again."""
        waiting = [*self._batch, *self._started, *self._again]
        return {"next": list(self._next), "again": [list(draw) for draw in waiting]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the groups that are to be played; `version` is the caller's."""
        self._next = Draw(*map(int, state["next"]))
        self._again = deque(Draw(*map(int, draw)) for draw in state["again"])


@dataclass
class _Group:
    draw: Draw
    tasks: list[EpisodeTask]
    results: list[EpisodeResult] = field(default_factory=list)


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
        parts: Sequence[MixEnvironment],
        estimator: AdvantageEstimator,
        pacer: Pacer,
        drawing: threading.Lock,
    ) -> None:
        super().__init__(collector, config, parts, estimator)
        self._pacer = pacer
        most = pacer.batch_size * (pacer.max_staleness + 1) * self._group_size
        self._num_slots = min(most, collector.options.max_concurrency)
        """How many episodes are played at once, if none has to wait."""
        self._lock = threading.Lock()
        """Guards the pacer."""
        self._drawing = drawing
        """Held while tasks are drawn: a curriculum observes results in another thread."""
        self._groups: dict[Draw, _Group] = {}
        self._tasks_to_play: deque[tuple[_Group, EpisodeTask]] = deque()
        self._blocks: dict[int, list[EpisodeTask]] = {}
        """The drawn tasks of the latest blocks."""
        self._changed = asyncio.Event()
        """Set, and replaced, when an episode has ended, an update is done, or something failed."""
        self._idle_seconds: defaultdict[str, float] = defaultdict(float)
        """Since the last call of `metrics`, by who was idle."""
        self._idle_since = time.monotonic()
        self._engine_idle_before = 0.0
        self._failure: BaseException | None = None
        self._host: LoopCall[None] | None = None
        self._stop: StopRequest | None = None

    def play(self, step: int, stop: StopRequest, on_episode: OnEpisode | None = None) -> Collection:
        """Wait for the groups of this step, while others are played."""
        if self._host is None:
            assert stop.thread is not None, "a run that listens to signals has an episode thread"
            with giving_up_blocked_loops(stop.give_up):
                self._host, self._stop = stop.thread.submit(self._play_all_the_time()), stop
            self.metrics()  # of the time from now on
        with self._idle("learner"):
            return run_unless_stopped(self._next_batch(on_episode), stop)

    @contextlib.contextmanager
    def _idle(self, what: str) -> Iterator[None]:
        """Count the time inside the block; it may overlap with others in the same thread."""
        started = time.monotonic()
        try:
            yield
        finally:
            self._idle_seconds[what] += time.monotonic() - max(started, self._idle_since)

    def metrics(self) -> Metrics:
        """Return also the shares of the step's time in which learner, engine and episodes waited.

        `idle/episodes` is that of the slots for episodes in which none was allowed to start.
        """
        now = time.monotonic()
        passed, self._idle_since = max(now - self._idle_since, 1e-9), now
        seconds, self._idle_seconds = self._idle_seconds, defaultdict(float)
        shares = {
            "idle/learner": seconds["learner"] / passed,
            "idle/episodes": seconds["episodes"] / (passed * self._num_slots),
        }
        engine_seconds = getattr(self.collector.setup.engine, "idle_seconds", None)
        if engine_seconds is not None:
            shares["idle/engine"] = (engine_seconds - self._engine_idle_before) / passed
            self._engine_idle_before = engine_seconds
        return shares | super().metrics()

    def step_done(self) -> None:
        with self._lock:
            self._pacer.updated()
        if self._stop is not None and self._stop.thread is not None:
            self._stop.thread.call_soon(self._wake_all)

    def close(self) -> None:
        """Cancel the running episodes; they are played again when the run is resumed."""
        host, stop, self._host = self._host, self._stop, None
        if host is not None and stop is not None and stop.thread is not None and not host.is_over:
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

    async def _next_task(self) -> tuple[_Group, EpisodeTask] | None:
        while not self._tasks_to_play:
            with self._lock:
                draw = self._pacer.start()
            if draw is None:
                with self._idle("episodes"):
                    await self._changed.wait()
                continue
            # Drawn once, as a whole: a curriculum may choose other tasks the next time.
            if draw.block not in self._blocks:
                with self._drawing:
                    self._blocks[draw.block] = self._tasks(draw.block)
                if len(self._blocks) > _MAX_BLOCKS:
                    del self._blocks[next(iter(self._blocks))]
            block, size = self._blocks[draw.block], self._group_size
            start = draw.number * size % len(block)  # a loaded run may have had larger blocks
            group = self._groups[draw] = _Group(draw, block[start : start + size])
            self._tasks_to_play.extend((group, task) for task in group.tasks)
        return self._tasks_to_play.popleft()

    def _keep(self, group: _Group, result: EpisodeResult) -> None:
        group.results.append(result)
        if len(group.results) == len(group.tasks):
            with self._lock:
                self._pacer.finish(group.draw)
        self._wake_all()

    async def _next_batch(self, on_episode: OnEpisode | None) -> Collection:
        """Wait for the next update's groups; number the episodes as in a synchronous step."""
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
                break
            await self._changed.wait()
        results = []
        for number, draw in enumerate(draws):
            group = self._groups.pop(draw)
            self._starts[number] = dataclasses.replace(group.tasks[0], group=number)
            for result in sorted(group.results, key=lambda result: result.member):
                result.group = number
                results.append(result)
        collection = await self.collector.finish(results)
        self._measure_zero_variance(collection)
        return collection

    def _wake_all(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
