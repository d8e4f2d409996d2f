"""How a run stops: signals (Ctrl-C, SIGTERM, SIGHUP) save it, and its episodes are cancelled.

Episodes are played in a thread of their own, so that the main thread can always handle signals.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from turnwise.deadlines import LoopCall, LoopThread, ended_if_unresponsive
from turnwise.episode.watchdog import giving_up_blocked_loops, where_thread_is
from turnwise.errors import EngineStalled
from turnwise.inference.worker import release_openmp_threads

_CLEANUP_SECONDS = 2.0
"""For cancelled episodes to clean up; those that take longer are abandoned."""

T = TypeVar("T")


class Interrupted(Exception):
    """Raised when work was cancelled by a stop request; its results are discarded."""


class StopRequest:
    """A request to end the run, by a signal or by `request`.

    The first signal requests it: running episodes are cancelled, a running update is finished, and
    the run is saved, however long that takes. A second signal exits at once, without saving;
    checkpoints are written atomically. Before there is anything to save, the first one exits at
    once as well.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.is_requested = False
        self.ends_run = False
        """Whether the run counts as finished then, as if it had made all its steps."""
        self.can_save = False
        """Whether there is something to save yet."""
        self.thread: LoopThread | None = None
        """The thread that plays episodes while this listens to signals."""
        self.waiting: LoopCall[Any] | None = None
        """What the main thread waits for."""
        self.stalled: EngineStalled | None = None
        """Why episodes must be given up: user code blocks their thread."""
        self._signal: int | None = None
        self._say = say

    def request(self) -> None:
        """Request the end of the run, as Ctrl-C does."""
        self.is_requested = True
        if self.waiting is not None:
            self.waiting.wake()

    def give_up(self, stalled: EngineStalled) -> None:
        """Abandon the episode thread, which user code blocks; the waiting thread raises this."""
        self.stalled = stalled
        if self.waiting is not None:
            self.waiting.wake()

    def raise_signal(self) -> None:
        """Raise for a signal that was received, so that the whole program ends."""
        if self._signal == signal.SIGINT:
            raise KeyboardInterrupt
        if self._signal is not None:
            raise SystemExit(128 + self._signal)

    def say(self, text: str) -> None:
        """Report a line, and ignore errors: the terminal may be closed or in use."""
        with contextlib.suppress(Exception):
            self._say(text)

    @contextlib.contextmanager
    def listening(
        self, stall_timeout: float | None = None, run_folder: Path | None = None
    ) -> Iterator[None]:
        """Handle the process's signals inside the block, if this is the main thread.

        A call that holds the GIL for `stall_timeout` seconds ends the process.
        """
        self.thread = LoopThread("episodes")
        before: dict[signal.Signals, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for kind in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                # Under nohup SIGHUP stays ignored.
                if kind is not signal.SIGHUP or signal.getsignal(kind) is not signal.SIG_IGN:
                    before[kind] = signal.signal(kind, self._on_signal)
        try:
            with ended_if_unresponsive(stall_timeout, run_folder):
                yield
        finally:
            for kind, handler in before.items():
                signal.signal(kind, handler)
            self.thread.end()
            self.thread = None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        is_first, self._signal = self._signal is None, number
        if not (is_first and self.can_save):
            self.raise_signal()
        self.say("stopping: saving the run first (Ctrl-C again leaves at once)")
        self.request()


def run_unless_stopped(coroutine: Coroutine[Any, Any, T], stop: StopRequest) -> T:
    """Run a coroutine in the episode thread; raise `Interrupted` if a stop is requested before.

    User code that blocks or ignores its cancellation is abandoned.
    """
    thread = stop.thread or LoopThread("episodes")
    release_openmp_threads()  # this thread computes nothing while it waits
    with giving_up_blocked_loops(stop.give_up):
        call = thread.submit(coroutine)
    stop.waiting = call
    try:
        if not (stop.is_requested or stop.stalled):
            call.wait()
        if call.is_over:
            return call.outcome.result()
        if stop.stalled is not None:
            stalled, stop.stalled = stop.stalled, None
            raise stalled
        end_call(call, thread, stop)
        raise Interrupted
    except (KeyboardInterrupt, SystemExit):  # of this thread: a signal that is not deferred
        call.cancel(0.0 if stop.is_requested else _CLEANUP_SECONDS)
        raise
    finally:
        stop.waiting = None
        if thread is not stop.thread:
            thread.end()
        elif not call.is_over:  # the next call must not wait for it
            thread.end()
            stop.thread = LoopThread("episodes")


def end_call(call: LoopCall[Any], thread: LoopThread, stop: StopRequest) -> None:
    """Cancel a call; if it does not end in some seconds, it is abandoned."""
    if not call.cancel(_CLEANUP_SECONDS):
        where = where_thread_is(thread.ident)
        stop.say(f"episodes do not end when cancelled, and are abandoned: {where}")
