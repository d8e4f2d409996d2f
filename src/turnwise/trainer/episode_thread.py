"""A thread for episodes, so that the main thread can always handle signals."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import queue
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from turnwise.deadlines import cancel_or_abandon, close_loop, new_loop, run_in

T = TypeVar("T")

_SIGNAL_SECONDS = 0.2
"""The longest delay until a signal is handled."""


class EpisodeThread:
    """A daemon thread that runs coroutines in one event loop: one after the other, or all alongside
    one that hosts them.

    Thread and loop are the same for all of them, since user code may keep objects that belong to
    one, such as a database connection or an HTTP client. A thread that user code blocks is
    abandoned.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[asyncio.AbstractEventLoop], None] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._work, name="turnwise: episodes", daemon=True)
        self._host: asyncio.AbstractEventLoop | None = None
        """The running loop of a host, in which other coroutines may run."""

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> EpisodeCall[T]:
        """Run a coroutine after those before it; alongside the host, if there is one."""
        call = EpisodeCall(coroutine)
        if self._host is not None:
            self._host.call_soon_threadsafe(call.run_alongside)
            return call
        if self._thread.ident is None:
            self._thread.start()
        self._calls.put(call.run)
        return call

    def host(self, coroutine: Coroutine[Any, Any, None]) -> EpisodeCall[None]:
        """Run a coroutine that lasts until it is cancelled; others run alongside it from now on."""
        is_running: Future[asyncio.AbstractEventLoop] = Future()

        async def run() -> None:
            is_running.set_result(asyncio.get_running_loop())
            try:
                await coroutine
            finally:
                self._host = None

        call = self.submit(run())
        self._host = is_running.result()
        return call

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function in the host's loop; does nothing if there is no host."""
        if self._host is not None:
            self._host.call_soon_threadsafe(function)

    def end(self) -> None:
        """Let the thread end after its current coroutine, without waiting for it."""
        self._calls.put(None)

    @property
    def ident(self) -> int:
        return self._thread.ident or 0

    def _work(self) -> None:
        loop = new_loop()
        try:
            while (call := self._calls.get()) is not None:
                call(loop)
                if asyncio.all_tasks(loop):  # abandoned: they run no longer than their loop
                    close_loop(loop)
                    loop = new_loop()
        finally:
            close_loop(loop)


class EpisodeCall(Generic[T]):
    """The main thread's handle of a coroutine that runs in the episode thread."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self.outcome: Future[T] = Future()
        self._coroutine = coroutine
        self._context = contextvars.copy_context()
        self._task: asyncio.Task[T] | None = None
        self._is_cancelled = False
        # A queue and not an event: a signal handler may call `wake` in the thread that waits.
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()

    def run(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            self.outcome.set_result(self._context.run(run_in, loop, self._run()))
        except BaseException as error:  # raised by outcome.result()
            self.outcome.set_exception(error)
        self.wake()

    def run_alongside(self) -> None:
        """Start in the running loop. Called in its thread."""
        task = asyncio.get_running_loop().create_task(self._run(), context=self._context)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[T]) -> None:
        try:
            self.outcome.set_result(task.result())
        except BaseException as error:  # raised by outcome.result()
            self.outcome.set_exception(error)
        self.wake()

    async def _run(self) -> T:
        self._task = asyncio.current_task()
        if self._is_cancelled:  # cancelled before there was a task
            self._coroutine.close()
            raise asyncio.CancelledError
        return await self._coroutine

    @property
    def is_over(self) -> bool:
        return self.outcome.done()

    def wait(self) -> None:
        """Wait until the coroutine is over or `wake` is called."""
        # With a timeout: a signal just before the wait would be handled only after it.
        is_awake = False
        while not is_awake:
            with contextlib.suppress(queue.Empty):
                self._wakeups.get(timeout=_SIGNAL_SECONDS)
                is_awake = True

    def wait_until_over(self, seconds: float) -> bool:
        """Wait at most this long; return whether the coroutine is over."""
        concurrent.futures.wait([self.outcome], timeout=seconds)
        return self.is_over

    def wake(self) -> None:
        """End `wait`; may be called in any thread and in a signal handler."""
        self._wakeups.put(None)

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._task is not None:
            try:
                self._task.get_loop().call_soon_threadsafe(cancel_or_abandon, self._task)
            except RuntimeError:  # its loop has closed: it is over
                return
