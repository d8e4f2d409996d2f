"""The time of episodes: what they wait for, what each component took, and what ends a stall."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from types import TracebackType
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


class EngineSilence:
    """How long an engine with open requests has returned nothing; all its collectors share it.

    A request that times out does not end the silence: the next request continues the count.
    """

    def __init__(self, engine: BaseInferenceEngine | None = None) -> None:
        self.engine = engine
        self._since = self.clock()
        self._has_given_up = False

    def clock(self) -> float:
        """Returns the time for deadlines: it stands still while an update pauses the engine."""
        paused = 0.0 if self.engine is None else self.engine.paused_seconds
        return time.monotonic() - paused

    @property
    def seconds(self) -> float:
        """Seconds of silence, while a request is open."""
        return self.clock() - self._since

    def begin(self) -> None:
        """Called for a request when no other is open."""
        if not self._has_given_up:
            self._since = self.clock()

    def end(self) -> None:
        """Called when the engine returned something, if only an error."""
        self._since = self.clock()
        self._has_given_up = False

    def give_up(self) -> None:
        """Called when a request timed out without any result."""
        self._has_given_up = True


class Waits:
    """Counts what the episodes of one event loop wait for; `moved` is the time of the last change.

    >>> waits = Waits()
    >>> for what in ("the engine", "the engine", "a tool"):
    ...     now = waits.begin(what)
    >>> waits.report()
    '2 for the engine, 1 for a tool'
    """

    def __init__(self, silence: EngineSilence | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self.moved = time.monotonic()
        self.silence = silence or EngineSilence()

    def begin(self, what: str) -> float:
        """Counts one more that waits for it, and returns the time."""
        if what == ENGINE and not self.counts[what]:
            self.silence.begin()
        self.counts[what] += 1
        self.moved = now = time.monotonic()
        return now

    def end(self, what: str) -> float:
        """Counts one less that waits for it, and returns the time."""
        self.counts[what] -= 1
        self.moved = now = time.monotonic()
        return now

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
        self._beat = time.monotonic()
        """When the loop last ran a callback."""
        self._waits = waits
        self._report_after = report_after
        self._stall_timeout = stall_timeout
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="turnwise: watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None, "a watchdog watches a task"
        self._task = task
        self._cancelling = task.cancelling()
        self._loop_thread = threading.get_ident()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        if not self._has_cancelled:
            return
        assert self.stalled is not None
        # A cancellation that came from elsewhere at the same time still counts.
        if self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise self.stalled from None

    def _watch(self) -> None:
        reported = time.monotonic()
        while not self._over.wait(self._pause()):
            now, silent = time.monotonic(), self._waits.silence.seconds
            is_awaited = self._waits.counts[ENGINE] > 0
            if self._stall_timeout is not None:
                if is_awaited and silent >= self._stall_timeout:
                    self._stop(f"nothing arrived from the engine for {silent:.0f} s")
                    return
                # Asked once more: after Ctrl-Z and fg the beat is old, and the loop runs.
                if now - self._beat >= self._stall_timeout and self._is_blocked():
                    self._stop(f"the event loop did not run for {now - self._beat:.0f} s")
                    return
                with contextlib.suppress(RuntimeError):  # it has ended
                    self._loop.call_soon_threadsafe(self._note_beat)
            quiet = now - self._waits.moved
            if quiet >= self._report_after and now - reported >= self._report_after:
                self._report(quiet)
                reported = now

    def _pause(self) -> float:
        limits = [self._report_after, self._stall_timeout or self._report_after]
        return max(min(limits) / 4, 0.01)

    def _report(self, quiet: float) -> None:
        waiting, is_blocked = self._waits.report(), self._is_blocked()
        if not waiting and not is_blocked:
            return  # no episode is under way: an asynchronous run may have to wait for its learner
        text = f"Nothing has moved for {quiet:.0f} s. Waiting: {waiting or 'nothing'}."
        if is_blocked:
            where = where_thread_is(self._loop_thread)
            text += f" The event loop is blocked by code that should be quick or awaited: {where}"
        _LOG.warning("%s", text)

    def _is_blocked(self) -> bool:
        has_run = threading.Event()
        try:
            self._loop.call_soon_threadsafe(has_run.set)
        except RuntimeError:  # it has ended
            return False
        return not has_run.wait(_BEAT_SECONDS)

    def _note_beat(self) -> None:
        self._beat = time.monotonic()

    def _stop(self, reason: str) -> None:
        is_blocked = self._is_blocked()
        advice = "The log says where each thread is. If turns may take that long, raise the limit"
        if is_blocked:
            where = where_thread_is(self._loop_thread)
            advice = (
                f"The event loop is blocked by code that should be quick or awaited: {where}. "
                "Without quick = True an environment has a thread and a time limit"
            )
        self.stalled = EngineStalled(
            f"{reason} (inference.stall_timeout). Waiting: {self._waits.report() or 'nothing'}. "
            f"{advice}; null disables it."
        )
        threads = [f"  {t.name}: {where_thread_is(t.ident or 0)}" for t in threading.enumerate()]
        _LOG.error("%s\nThreads:\n%s", self.stalled, "\n".join(threads))
        with contextlib.suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._cancel)
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
        self.failed_component: str | None = None
        self._waits = waits or Waits()
        self._started = time.monotonic()
        self._end = None if max_seconds is None else self._waits.silence.clock() + max_seconds

    def component(self, name: str) -> _ComponentCall:
        """Returns a context in which time, waiting and failures are those of this component."""
        return _ComponentCall(self, name)

    @property
    def error_status(self) -> EpisodeStatus | None:
        """The status for the component that failed; None if no component failed."""
        return None if self.failed_component is None else _COMPONENTS[self.failed_component][0]

    @property
    def seconds(self) -> float:
        """Seconds since the episode began."""
        return time.monotonic() - self._started

    @property
    def is_over(self) -> bool:
        # Timers fire a little early: what this limit has cut must find that the time is over.
        return self._end is not None and self._waits.silence.clock() >= self._end - 0.02

    def within(self, timeout: float | None) -> float | None:
        """Returns the timeout of a call, shortened to what is left of the episode's time."""
        if self._end is None:
            return timeout
        left = max(self._end - self._waits.silence.clock(), 0.0)
        return left if timeout is None else min(left, timeout)


class _ComponentCall:
    __slots__ = ("_name", "_started", "_timer")

    def __init__(self, timer: EpisodeTimer, name: str) -> None:
        self._timer = timer
        self._name = name

    def __enter__(self) -> None:
        self._started = self._timer._waits.begin(_COMPONENTS[self._name][1])

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        timer, name = self._timer, self._name
        took = timer._waits.end(_COMPONENTS[name][1]) - self._started
        timer.component_seconds[name] = timer.component_seconds.get(name, 0.0) + took
        timer.turn_seconds[name] = timer.turn_seconds.get(name, 0.0) + took
        if kind is not None and timer.failed_component is None:
            timer.failed_component = name
