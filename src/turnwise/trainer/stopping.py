"""Ctrl-C and SIGTERM while a run goes on: stop at the next safe point, and soon."""

from __future__ import annotations

import _thread
import asyncio
import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from types import FrameType, TracebackType
from typing import Any, TypeVar

from turnwise.deadlines import run_sync

# Ten seconds are promised; an update or a save that takes longer is left as it is.
MOST_SECONDS = 8.0
# Of them, what is called off gets so many to clean up after itself.
_CLEANING_SECONDS = 2.0

T = TypeVar("T")


class Interrupted(Exception):
    """What was under way was called off; nothing of it counts."""


class StopRequest:
    """Whether somebody wants the run to end.

    The first Ctrl-C or SIGTERM asks; what is under way and may be given up is called off. A
    second Ctrl-C leaves at once, and so does a first one that had no effect for a while.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.is_wanted = False
        self._heard: int | None = None
        self._say = say
        self._call_off: Callable[[], object] | None = None
        self._timer: threading.Timer | None = None

    def ask(self) -> None:
        """Ask for an end, as Ctrl-C does."""
        self.is_wanted = True
        if self._call_off is not None:
            self._call_off()

    def leave(self) -> None:
        """Pass a signal on that was held back: the program, too, is to end."""
        if self._heard == signal.SIGINT:
            raise KeyboardInterrupt
        if self._heard is not None:
            raise SystemExit(128 + self._heard)

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
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {kind: signal.signal(kind, self._hear) for kind in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            if self._timer is not None:
                self._timer.cancel()
            for kind, handler in before.items():
                signal.signal(kind, handler)

    def _hear(self, number: int, frame: FrameType | None) -> Any:
        if self.is_wanted and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.is_wanted:
            return
        self._heard = number
        if number == signal.SIGINT:
            end_by_signal_if_uncaught()
        self._say("stopping: saving the run first (Ctrl-C again leaves at once)")
        self._timer = threading.Timer(MOST_SECONDS, _thread.interrupt_main)
        self._timer.daemon = True
        self._timer.start()
        self.ask()


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
    """Run it to its end; `Interrupted` if a stop is asked for before."""

    async def run() -> T:
        loop = asyncio.get_running_loop()
        work, stopped = loop.create_task(coroutine), loop.create_future()

        def call_off() -> None:
            if not stopped.done():
                stopped.set_result(None)

        with stop.calling_off(lambda: loop.call_soon_threadsafe(call_off)):
            await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            work.cancel()
            # Whatever still holds on then is left behind.
            await asyncio.wait({work}, timeout=_CLEANING_SECONDS)
        raise Interrupted

    return run_sync(run())
