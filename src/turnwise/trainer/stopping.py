"""Ctrl-C, SIGTERM and SIGHUP while a run is in progress: it is saved, and the process ends."""

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
from types import FrameType, TracebackType
from typing import Any, NoReturn, TypeVar

from turnwise.episode.watchdog import where_thread_is
from turnwise.inference.openmp_threads import release_openmp_threads
from turnwise.trainer.episode_thread import EpisodeThread

_CLEANING_SECONDS = 2.0
"""For what is called off to clean up after itself; what holds on longer is left behind."""
_REMINDER_SECONDS = 10.0
"""Between two lines that say what a run that is to stop is still doing."""
_EXIT_SECONDS = 10.0
"""For a main thread to react to a second signal, and for a process to end that has left `fit`."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

T = TypeVar("T")


class Interrupted(Exception):
    """What was under way was called off; nothing of it counts."""


class StopRequest:
    """Whether somebody wants the run to end.

    The first signal asks for it: episodes under way are called off, an update under way is
    finished, and the run is saved, however long that takes. A second signal leaves at once, without
    that save; checkpoints are whole or not there. Before there is anything to save, the first one
    leaves at once as well.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.is_wanted = False
        self.can_save = False
        """Whether the run has come so far that there is something to save."""
        self.thread: EpisodeThread | None = None
        """Where episodes are played while this listens."""
        self._heard: int | None = None
        self._say = say
        self._call_off: Callable[[], object] | None = None
        self._later_signals: queue.SimpleQueue[int | None] = queue.SimpleQueue()

    def ask(self) -> None:
        """Ask for an end, as Ctrl-C does."""
        self.is_wanted = True
        if self._call_off is not None:
            self._call_off()

    def leave(self) -> None:
        """Pass a signal on that was held back: the program, too, is to end."""
        if self._heard is not None:
            _raise_for(self._heard)

    def say(self, text: str) -> None:
        """Say it if that is possible: the terminal may be gone, or be written to right now."""
        with contextlib.suppress(Exception):
            self._say(text)

    @contextlib.contextmanager
    def calling_off(self, call_off: Callable[[], object]) -> Iterator[None]:
        """While this lasts, a request calls `call_off`, which must be quick."""
        self._call_off = call_off
        try:
            if self.is_wanted:
                call_off()
            yield
        finally:
            self._call_off = None

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Take the process's signals; only the main thread can, elsewhere nothing is taken."""
        self.thread = EpisodeThread()
        before: dict[signal.Signals, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for kind in _SIGNALS:
                # Under nohup a hangup is ignored, and stays so.
                if kind is signal.SIGHUP and signal.getsignal(kind) is signal.SIG_IGN:
                    continue
                before[kind] = signal.signal(kind, self._hear)
        try:
            yield
        finally:
            for kind, handler in before.items():
                signal.signal(kind, handler)
            self._later_signals.put(None)
            self.thread.end()
            self.thread = None
            if self._heard is not None:
                _in_background(_end_process, 128 + self._heard, self.say)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        is_first, self._heard = self._heard is None, number
        if number == signal.SIGINT and is_first:
            end_by_signal_if_uncaught()
        if not is_first:
            self._later_signals.put(number)
        if not (is_first and self.can_save):
            _raise_for(number)
        self.say("stopping: saving the run first (Ctrl-C again leaves at once)")
        _in_background(self._attend)
        self.ask()

    def _attend(self) -> None:
        """In a thread: say what takes so long, and end a process that does not react."""
        main = threading.main_thread().ident
        assert main is not None
        second: int | None = None
        while True:
            try:
                heard = self._later_signals.get(timeout=_REMINDER_SECONDS)
            except queue.Empty:
                where = where_thread_is(main)
                if second is None:
                    self.say(f"still stopping (Ctrl-C leaves without saving): {where}")
                    continue
                self.say(f"the main thread does not react, and the process ends: {where}")
                _exit_now(128 + second)
            if heard is None:
                return
            second = heard


def _raise_for(number: int) -> NoReturn:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)


def _in_background(function: Callable[..., None], *args: Any) -> None:
    name = f"turnwise: {function.__name__.strip('_').replace('_', ' ')}"
    threading.Thread(target=function, args=args, name=name, daemon=True).start()


def _end_process(code: int, say: Callable[[str], None]) -> None:
    """In a thread: a process whose main thread has ended does not wait for ever for the others.

    Threads that user code made, and those of `asyncio.to_thread`, would keep it.
    """
    threading.main_thread().join()
    time.sleep(_EXIT_SECONDS)
    threads = [t.name for t in threading.enumerate() if t.is_alive() and not t.daemon]
    say(f"the process ends, and does not wait for its other threads: {', '.join(threads)}")
    _exit_now(code)


def _exit_now(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def end_by_signal_if_uncaught() -> None:
    """Let a KeyboardInterrupt that nobody catches end the process by SIGINT, as shells expect.

    Python does so by itself, unless a handler at exit evaluates a string, as torch's may: the note
    that it was an interrupt is then lost, the exit code is 1, and a shell's loop goes on.
    """
    before = sys.excepthook

    def tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        if kind is not KeyboardInterrupt:
            return
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # closed, or nobody reads it
                stream.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)

    sys.excepthook = tell


def run_unless_stopped(coroutine: Coroutine[Any, Any, T], stop: StopRequest) -> T:
    """Run it to its end, in a thread; `Interrupted` if a stop is asked for before.

    User code that blocks, or ignores that it is cancelled, is left behind.
    """
    thread = stop.thread or EpisodeThread()
    release_openmp_threads()  # this thread computes nothing meanwhile
    call = thread.submit(coroutine)
    try:
        with stop.calling_off(call.wake):
            call.wait()
        if call.is_over:
            return call.outcome.result()
        call.cancel()
        if not call.wait_until_over(_CLEANING_SECONDS):
            where = where_thread_is(thread.ident)
            stop.say(f"episodes do not end when called off, and are left behind: {where}")
        raise Interrupted
    except (KeyboardInterrupt, SystemExit):  # of this thread: a signal that nobody holds back
        call.cancel()
        if not stop.is_wanted:
            call.wait_until_over(_CLEANING_SECONDS)
        raise
    finally:
        if thread is not stop.thread:
            thread.end()
        elif not call.is_over:  # what comes next is not to wait for it
            thread.end()
            stop.thread = EpisodeThread()
