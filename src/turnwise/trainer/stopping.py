"""How a run stops: signals (Ctrl-C, SIGTERM, SIGHUP) save it, and its episodes are cancelled.

Episodes are played in a thread of their own, so that the main thread can always handle signals.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Generic, NoReturn, TypeVar

from turnwise.deadlines import close_loop, ended_if_unresponsive, new_loop
from turnwise.episode.watchdog import giving_up_blocked_loops, where_thread_is
from turnwise.errors import EngineStalled
from turnwise.inference.worker import release_openmp_threads

_CLEANUP_SECONDS = 2.0
"""For cancelled episodes to clean up; those that take longer are abandoned."""
_REMINDER_SECONDS = 10.0
"""Between two reports of what a stopping run is still doing."""
_EXIT_SECONDS = 10.0
"""For the main thread to react to a second signal, and for the process to end after `fit`."""
_SIGNAL_SECONDS = 0.2
"""The longest delay until a signal is handled."""

T = TypeVar("T")


class Interrupted(Exception):
    """Raised when work was cancelled by a stop request; its results are discarded."""


class EpisodeThread:
    """A daemon thread that runs coroutines in one event loop, side by side.

    Thread and loop are the same for all of them, since user code may keep objects that belong to
    one, such as a database connection or an HTTP client. A thread that user code blocks is
    abandoned.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._work, name="turnwise: episodes", daemon=True)

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> EpisodeCall[T]:
        """Run a coroutine alongside the others."""
        if self._loop is None:
            self._loop = new_loop()
            self._thread.start()
        return EpisodeCall(coroutine, self._loop)

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function in the loop; does nothing if it does not run."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has closed
                self._loop.call_soon_threadsafe(function)

    def end(self) -> None:
        """Cancel what still runs, and let the thread end, without waiting for it."""
        if self._loop is not None:
            self.call_soon(self._loop.stop)

    @property
    def ident(self) -> int:
        return self._thread.ident or 0

    def _work(self) -> None:
        assert self._loop is not None
        try:
            self._loop.run_forever()
        finally:
            close_loop(self._loop)


class EpisodeCall(Generic[T]):
    """The main thread's handle of a coroutine that runs in the episode thread."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> None:
        self.outcome: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._loop = loop
        self._task: asyncio.Task[T] | None = None
        # A queue and not an event: a signal handler may call `wake` in the thread that waits.
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()
        loop.call_soon_threadsafe(self._start, coroutine)

    def _start(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._task = self._loop.create_task(coroutine)
        self._task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[T]) -> None:
        try:
            self.outcome.set_result(task.result())
        except BaseException as error:  # raised by outcome.result()
            self.outcome.set_exception(error)
        self.wake()

    @property
    def is_over(self) -> bool:
        return self.outcome.done()

    def wait(self) -> None:
        """Wait until the coroutine is over or `wake` is called."""
        # With a timeout: a signal just before the wait would be handled only after it.
        while True:
            with contextlib.suppress(queue.Empty):
                return self._wakeups.get(timeout=_SIGNAL_SECONDS)

    def wake(self) -> None:
        """End `wait`; may be called in any thread and in a signal handler."""
        self._wakeups.put(None)

    def cancel(self, seconds: float = _CLEANUP_SECONDS) -> bool:
        """Cancel the coroutine and give it some time to clean up; return whether it is over."""

        def cancel_task() -> None:
            assert self._task is not None, "it was started before"
            self._task.cancel()

        with contextlib.suppress(RuntimeError):  # the loop has closed: it is over
            self._loop.call_soon_threadsafe(cancel_task)
        concurrent.futures.wait([self.outcome], timeout=seconds)
        return self.is_over


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
        self.waiting: EpisodeCall[Any] | None = None
        """What the main thread waits for."""
        self.stalled: EngineStalled | None = None
        """Why episodes must be given up: user code blocks their thread."""
        self._signal: int | None = None
        self._say = say
        self._later_signals: queue.SimpleQueue[int | None] = queue.SimpleQueue()

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
        if self._signal is not None:
            _raise_for(self._signal)

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
        self.thread = EpisodeThread()
        before: dict[signal.Signals, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for kind in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
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
                _in_background(self._end_process, "end the process")

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        is_first, self._signal = self._signal is None, number
        if not is_first:
            self._later_signals.put(number)
        if not (is_first and self.can_save):
            _raise_for(number)
        self.say("stopping: saving the run first (Ctrl-C again leaves at once)")
        _in_background(self._report_until_stopped, "report until stopped")
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

    def _end_process(self) -> None:
        """In a thread: end the process some time after its main thread, whatever others do.

        Threads of user code, and those of `asyncio.to_thread`, would keep it alive.
        """
        threading.main_thread().join()
        time.sleep(_EXIT_SECONDS)
        names = [t.name for t in threading.enumerate() if t.is_alive() and not t.daemon]
        self.say(f"the process ends, and does not wait for its other threads: {', '.join(names)}")
        exit_now(128 + (self._signal or 0))


def _raise_for(number: int) -> NoReturn:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)


def _in_background(function: Callable[[], None], name: str) -> None:
    threading.Thread(target=function, name=f"turnwise: {name}", daemon=True).start()


def exit_now(code: int) -> NoReturn:
    """End the process at once, whatever its threads do."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def run_unless_stopped(coroutine: Coroutine[Any, Any, T], stop: StopRequest) -> T:
    """Run a coroutine in the episode thread; raise `Interrupted` if a stop is requested before.

    User code that blocks or ignores its cancellation is abandoned.
    """
    thread = stop.thread or EpisodeThread()
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
            stop.thread = EpisodeThread()


def end_call(call: EpisodeCall[Any], thread: EpisodeThread, stop: StopRequest) -> None:
    """Cancel a call; if it does not end in some seconds, it is abandoned."""
    if not call.cancel():
        where = where_thread_is(thread.ident)
        stop.say(f"episodes do not end when cancelled, and are abandoned: {where}")
