"""A thread for episodes, so that the main thread can always handle signals."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import queue
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from turnwise.deadlines import close_loop, new_loop

T = TypeVar("T")

_SIGNAL_SECONDS = 0.2
"""The longest delay until a signal is handled."""


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
        call = EpisodeCall(coroutine, self._loop)
        self._loop.call_soon_threadsafe(call.start)
        return call

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
        self._coroutine = coroutine
        self._loop = loop
        self._context = contextvars.copy_context()
        self._task: asyncio.Task[T] | None = None
        # A queue and not an event: a signal handler may call `wake` in the thread that waits.
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()

    def start(self) -> None:
        """Called in the loop's thread."""
        self._task = self._loop.create_task(self._coroutine, context=self._context)
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
        with contextlib.suppress(RuntimeError):  # the loop has closed: it is over
            self._loop.call_soon_threadsafe(self._cancel_task)

    def _cancel_task(self) -> None:
        assert self._task is not None, "it was started before"
        self._task.cancel()
