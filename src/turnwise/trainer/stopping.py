"""Signals during a run (Ctrl-C, SIGTERM, SIGHUP): the run is saved, and the process ends."""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn, TypeVar

from turnwise.deadlines import ended_if_unresponsive
from turnwise.episode.watchdog import giving_up_blocked_loops, where_thread_is
from turnwise.errors import EngineStalled
from turnwise.inference.openmp_threads import release_openmp_threads
from turnwise.trainer.episode_thread import EpisodeCall, EpisodeThread

_CLEANUP_SECONDS = 2.0
"""For cancelled episodes to clean up; those that take longer are abandoned."""
_REMINDER_SECONDS = 10.0
"""Between two reports of what a stopping run is still doing."""
_EXIT_SECONDS = 10.0
"""For the main thread to react to a second signal, and for the process to end after `fit`."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

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
        self.thread: EpisodeThread | None = None
        """The thread that plays episodes while this listens to signals."""
        self._stalled: EngineStalled | None = None
        self._signal: int | None = None
        self._say = say
        self._on_request: Callable[[], object] | None = None
        self._later_signals: queue.SimpleQueue[int | None] = queue.SimpleQueue()

    def request(self) -> None:
        """Request the end of the run, as Ctrl-C does."""
        self.is_requested = True
        if self._on_request is not None:
            self._on_request()

    def give_up(self, stalled: EngineStalled) -> None:
        """Abandon the episode thread, which user code blocks; the waiting thread raises this."""
        self._stalled = stalled
        if self._on_request is not None:
            self._on_request()

    def raise_stalled(self) -> None:
        """Raise what `give_up` got, once."""
        if self._stalled is not None:
            stalled, self._stalled = self._stalled, None
            raise stalled

    def raise_signal(self) -> None:
        """Raise for a signal that was received, so that the whole program ends."""
        if self._signal is not None:
            _raise_for(self._signal)

    def say(self, text: str) -> None:
        """Report a line, and ignore errors: the terminal may be closed or in use."""
        with contextlib.suppress(Exception):
            self._say(text)

    @contextlib.contextmanager
    def on_request(self, callback: Callable[[], object]) -> Iterator[None]:
        """Call `callback`, which must be quick, if a stop is requested inside the block."""
        self._on_request = callback
        try:
            if self.is_requested or self._stalled is not None:
                callback()
            yield
        finally:
            self._on_request = None

    @contextlib.contextmanager
    def listening(
        self, stall_timeout: float | None = None, run_folder: Path | None = None
    ) -> Iterator[None]:
        """Handle the process's signals inside the block, if this is the main thread.

        A call that holds the GIL for `stall_timeout` seconds ends the process.
        """
        self.thread = EpisodeThread()
        before: dict[signal.Signals, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for kind in _SIGNALS:
                # Under nohup SIGHUP stays ignored.
                if kind is signal.SIGHUP and signal.getsignal(kind) is signal.SIG_IGN:
                    continue
                before[kind] = signal.signal(kind, self._on_signal)
        try:
            with ended_if_unresponsive(stall_timeout, run_folder):
                yield
        finally:
            for kind, handler in before.items():
                signal.signal(kind, handler)
            self._later_signals.put(None)
            self.thread.end()
            self.thread = None
            if self._signal is not None:
                _in_background(_end_process, 128 + self._signal, self.say)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        is_first, self._signal = self._signal is None, number
        if number == signal.SIGINT and is_first:
            end_by_signal_if_uncaught()
        if not is_first:
            self._later_signals.put(number)
        if not (is_first and self.can_save):
            _raise_for(number)
        self.say("stopping: saving the run first (Ctrl-C again leaves at once)")
        _in_background(self._report_until_stopped)
        self.request()

    def _report_until_stopped(self) -> None:
        """In a thread: report what takes long, and end a process that does not react."""
        main = threading.main_thread().ident
        assert main is not None
        second: int | None = None
        while True:
            try:
                number = self._later_signals.get(timeout=_REMINDER_SECONDS)
            except queue.Empty:
                where = where_thread_is(main)
                if second is None:
                    self.say(f"still stopping (Ctrl-C leaves without saving): {where}")
                    continue
                self.say(f"the main thread does not react, and the process ends: {where}")
                exit_now(128 + second)
            if number is None:
                return
            second = number


def _raise_for(number: int) -> NoReturn:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)


def _in_background(function: Callable[..., None], *args: Any) -> None:
    name = f"turnwise: {function.__name__.strip('_').replace('_', ' ')}"
    threading.Thread(target=function, args=args, name=name, daemon=True).start()


def _end_process(code: int, say: Callable[[str], None]) -> None:
    """In a thread: end the process some time after its main thread, whatever other threads do.

    Threads of user code, and those of `asyncio.to_thread`, would keep it alive.
    """
    threading.main_thread().join()
    time.sleep(_EXIT_SECONDS)
    threads = [t.name for t in threading.enumerate() if t.is_alive() and not t.daemon]
    say(f"the process ends, and does not wait for its other threads: {', '.join(threads)}")
    exit_now(code)


def exit_now(code: int) -> NoReturn:
    """End the process at once, whatever its threads do."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def end_by_signal_if_uncaught() -> None:
    """Make an uncaught KeyboardInterrupt end the process by SIGINT, as shells expect.

    Python does so by itself, unless an exit handler evaluates a string, as torch's may: the exit
    code is 1 then, and a shell's loop continues.
    """
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        if kind is not KeyboardInterrupt:
            return
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # closed, or a broken pipe
                stream.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)

    sys.excepthook = hook


def run_unless_stopped(coroutine: Coroutine[Any, Any, T], stop: StopRequest) -> T:
    """Run a coroutine in the episode thread; raise `Interrupted` if a stop is requested before.

    User code that blocks or ignores its cancellation is abandoned.
    """
    thread = stop.thread or EpisodeThread()
    release_openmp_threads()  # this thread computes nothing while it waits
    with giving_up_blocked_loops(stop.give_up):
        call = thread.submit(coroutine)
    try:
        with stop.on_request(call.wake):
            call.wait()
        if call.is_over:
            return call.outcome.result()
        stop.raise_stalled()
        end_call(call, thread, stop)
        raise Interrupted
    except (KeyboardInterrupt, SystemExit):  # of this thread: a signal that is not deferred
        call.cancel()
        if not stop.is_requested:
            call.wait_until_over(_CLEANUP_SECONDS)
        raise
    finally:
        if thread is not stop.thread:
            thread.end()
        elif not call.is_over:  # the next call must not wait for it
            thread.end()
            stop.thread = EpisodeThread()


def end_call(call: EpisodeCall[Any], thread: EpisodeThread, stop: StopRequest) -> None:
    """Cancel a call and give it some time to clean up; then it is abandoned."""
    call.cancel()
    if not call.wait_until_over(_CLEANUP_SECONDS):
        where = where_thread_is(thread.ident)
        stop.say(f"episodes do not end when cancelled, and are abandoned: {where}")
