"""The time of episodes: what they wait for, what each component took, and what ends a stall."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import math
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Self

from turnwise.errors import EngineStalled
from turnwise.inference.base import BaseInferenceEngine
from turnwise.types import EpisodeStatus

ENGINE = "the engine"
_BEAT_SECONDS = 1.0
"""An event loop that runs no callback for so long is blocked."""
_LOG = logging.getLogger("turnwise")
_on_blocked: contextvars.ContextVar[Callable[[EngineStalled], object] | None] = (
    contextvars.ContextVar("on_blocked", default=None)
)


@contextlib.contextmanager
def giving_up_blocked_loops(on_blocked: Callable[[EngineStalled], object]) -> Iterator[None]:
    """Call `on_blocked` when a loop that is started inside the block is blocked for too long.

    Only another thread can give it up; the watchdog's thread calls this.
    """
    token = _on_blocked.set(on_blocked)
    try:
        yield
    finally:
        _on_blocked.reset(token)


class Waits:
    """Counts what the episodes of one event loop wait for; `moved` is the time of the last change.

    >>> waits = Waits()
    >>> for what in ("the engine", "the engine", "a tool"):
    ...     now = waits.add(what, 1)
    >>> waits.report()
    '2 for the engine, 1 for a tool'
    """

    def __init__(self, engine: BaseInferenceEngine | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self.moved = time.monotonic()
        self._engine = engine
        self._engine_moved = self.clock()
        """When the engine last returned something, or had nothing to do."""
        self._is_late = False

    def clock(self) -> float:
        """Returns the time for deadlines: it stands still while an update pauses the engine."""
        paused = 0.0 if self._engine is None else self._engine.paused_seconds
        return time.monotonic() - paused

    def add(self, what: str, number: int) -> float:
        """Counts so many more that wait for it, and returns the time."""
        if what == ENGINE and not self.counts[what] and not self._is_late:
            self._engine_moved = self.clock()
        self.counts[what] += number
        self.moved = now = time.monotonic()
        return now

    def engine_answered(self, *, is_late: bool = False) -> None:
        """Called when the engine returned something, or a request timed out without any result.

        The request after one that timed out continues the count of silent seconds.
        """
        self._is_late = is_late
        if not is_late:
            self._engine_moved = self.clock()

    @property
    def silent_seconds(self) -> float:
        """How long an engine with open requests has returned nothing."""
        return self.clock() - self._engine_moved if self.counts[ENGINE] > 0 else 0.0

    def report(self) -> str:
        """Returns how many wait for what, the most common first."""
        counts = Counter(self.counts.copy())  # another thread may be counting
        waiting = [(what, number) for what, number in counts.most_common() if number > 0]
        return ", ".join(f"{number} for {what}" for what, number in waiting)


class Watchdog:
    """A thread that watches the episodes of one event loop while they are played.

    When nothing has moved for `report_after` seconds it logs what is waited for, and where the loop
    is if user code blocks it. When nothing has arrived from the engine for `stall_timeout` seconds,
    or the loop was blocked for so long, it logs where every thread is and cancels the watched task,
    which then raises `stalled`. A blocked loop cancels nothing: `giving_up_blocked_loops`.
    """

    def __init__(self, waits: Waits, report_after: float, stall_timeout: float | None) -> None:
        self.stalled: EngineStalled | None = None
        self._has_cancelled = False
        self._on_blocked = _on_blocked.get()
        self._waits = waits
        self._report_after = report_after
        self._stall_timeout = stall_timeout or math.inf
        self._over = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        task = asyncio.current_task()
        assert task is not None, "a watchdog watches a task"
        self._task = task

    def __enter__(self) -> Self:
        threading.Thread(target=self._watch, name="turnwise: watchdog", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._over.set()
        if self._has_cancelled:
            num_others = self._task.uncancel()  # one that came at the same time still counts
            if num_others == 0 and kind is asyncio.CancelledError:
                assert self.stalled is not None
                raise self.stalled from None

    def _watch(self) -> None:
        limit = self._stall_timeout
        pause = max(min(self._report_after, limit) / 4, 0.01)
        has_run = threading.Event()
        self._call_in_loop(has_run.set)
        blocked = 0.0
        reported = time.monotonic()
        while not self._over.wait(pause):
            # Counted: a clock would go on while Ctrl-Z stops the process.
            blocked += pause
            if has_run.is_set():
                blocked = 0.0
                has_run.clear()
                self._call_in_loop(has_run.set)
            now, silent = time.monotonic(), self._waits.silent_seconds
            is_blocked = blocked >= _BEAT_SECONDS
            if silent >= limit or blocked >= limit:
                why = f"the event loop did not run for {blocked:.0f} s"
                if silent >= limit:
                    why = f"nothing arrived from the engine for {silent:.0f} s"
                self._stop(why, is_blocked)
                return
            quiet = now - self._waits.moved
            if quiet >= self._report_after and now - reported >= self._report_after:
                reported = now
                # An asynchronous run without episodes may have to wait for its learner.
                if self._waits.report() or is_blocked:
                    _LOG.warning("Nothing has moved for %.0f s. %s", quiet, self._state(is_blocked))

    def _call_in_loop(self, function: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(function)

    def _state(self, is_blocked: bool) -> str:
        text = f"Waiting: {self._waits.report() or 'nothing'}."
        if is_blocked:
            where = where_thread_is(self._loop_thread)
            text += f" The event loop is blocked by code that should be quick or awaited: {where}."
        return text

    def _stop(self, reason: str, is_blocked: bool) -> None:
        self.stalled = EngineStalled(
            f"{reason} (inference.stall_timeout). {self._state(is_blocked)} The log says where "
            "each thread is. If turns may take that long, raise the limit; null disables it."
        )
        threads = [f"  {t.name}: {where_thread_is(t.ident or 0)}" for t in threading.enumerate()]
        _LOG.error("%s\nThreads:\n%s", self.stalled, "\n".join(threads))
        self._call_in_loop(self._cancel)
        if is_blocked and self._on_blocked is not None:
            self._on_blocked(self.stalled)

    def _cancel(self) -> None:
        if not self._over.is_set():
            self._has_cancelled = True
            self._task.cancel()


def where_thread_is(ident: int, depth: int = 4) -> str:
    """Returns the innermost calls of a thread, the innermost first."""
    frame = sys._current_frames().get(ident)
    if frame is None:
        return "it has ended"
    calls = reversed(traceback.extract_stack(frame)[-depth:])
    return " < ".join(f"{call.name} ({call.filename}:{call.lineno})" for call in calls)


# For each component: the status of an episode in which it fails, and its name in reports.
_COMPONENTS = {
    "engine": (EpisodeStatus.ENGINE_ERROR, ENGINE),
    "environment": (EpisodeStatus.ENVIRONMENT_ERROR, "an environment"),
    "tools": (EpisodeStatus.TOOL_ERROR, "a tool"),
    "reward": (EpisodeStatus.REWARD_ERROR, "a reward"),
    "agent": (EpisodeStatus.AGENT_ERROR, "an agent"),
}


class EpisodeTimer:
    """Times one episode: `with timer.component("engine"): ...` around each call of a component.

    `waits` counts what the episodes of this event loop wait for.
    """

    def __init__(self, waits: Waits | None = None, max_seconds: float | None = None) -> None:
        self.component_seconds: dict[str, float] = {}
        """Since the episode began."""
        self.turn_seconds: dict[str, float] = {}
        """Since the turn began."""
        self.error_status: EpisodeStatus | None = None
        """The status for the component that failed first; None if no component failed."""
        self._waits = waits or Waits()
        self._started = time.monotonic()
        self._end = None if max_seconds is None else self._waits.clock() + max_seconds

    @contextlib.contextmanager
    def component(self, name: str) -> Iterator[None]:
        """In the block, time, waiting and failures are those of this component."""
        error_status, what = _COMPONENTS[name]
        started = self._waits.add(what, 1)
        try:
            yield
        except BaseException:  # user code may raise SystemExit
            self.error_status = self.error_status or error_status
            raise
        finally:
            took = self._waits.add(what, -1) - started
            for seconds in (self.component_seconds, self.turn_seconds):
                seconds[name] = seconds.get(name, 0.0) + took

    @property
    def seconds(self) -> float:
        """Seconds since the episode began."""
        return time.monotonic() - self._started

    @property
    def is_over(self) -> bool:
        # Timers fire a little early: what this limit has cut must find that the time is over.
        return self._end is not None and self._waits.clock() >= self._end - 0.02

    def within(self, timeout: float | None) -> float | None:
        """Returns the timeout of a call, shortened to what is left of the episode's time."""
        if self._end is None:
            return timeout
        left = max(self._end - self._waits.clock(), 0.0)
        return left if timeout is None else min(left, timeout)
