"""Episodes in a thread of their own, so that the main thread always hears signals."""

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

from turnwise.deadlines import cancel_or_abandon, run_sync

T = TypeVar("T")

_SIGNAL_SECONDS = 0.2
"""In which a signal is heard at the latest."""


class EpisodeThread:
    """A daemon thread that runs coroutines, one after the other, each in an event loop of its own.

    It is the same thread for all of them: user code may hold what belongs to one thread, such as a
    database connection. One that user code blocks is left behind.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="turnwise: episodes", daemon=True)

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> EpisodeCall[T]:
        """Run it when those before it are over."""
        call = EpisodeCall(coroutine)
        if self._thread.ident is None:
            self._thread.start()
        self._calls.put(call.run)
        return call

    def end(self) -> None:
        """Let it end when what it is running is over; does not wait for that."""
        self._calls.put(None)

    @property
    def ident(self) -> int:
        return self._thread.ident or 0

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


class EpisodeCall(Generic[T]):
    """A coroutine that runs in the thread, as the main thread sees it."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self.outcome: Future[T] = Future()
        self._coroutine = coroutine
        self._context = contextvars.copy_context()
        self._task: asyncio.Task[T] | None = None
        self._is_cancelled = False
        # A queue and not an event: a signal's handler may wake whoever waits, in the same thread.
        self._news: queue.SimpleQueue[None] = queue.SimpleQueue()

    def run(self) -> None:
        try:
            self.outcome.set_result(self._context.run(run_sync, self._run()))
        except BaseException as error:  # goes to whoever waits for it
            self.outcome.set_exception(error)
        self.wake()

    async def _run(self) -> T:
        self._task = asyncio.current_task()
        if self._is_cancelled:  # asked for before there was a task
            self._coroutine.close()
            raise asyncio.CancelledError
        return await self._coroutine

    @property
    def is_over(self) -> bool:
        return self.outcome.done()

    def wait(self) -> None:
        """Until it is over, or somebody wakes whoever waits."""
        # A signal that comes just before the thread falls asleep does not wake it: Python's handler
        # would run only after the wait.
        is_awake = False
        while not is_awake:
            with contextlib.suppress(queue.Empty):
                self._news.get(timeout=_SIGNAL_SECONDS)
                is_awake = True

    def wait_until_over(self, seconds: float) -> bool:
        """Whether it is, at the latest after so many seconds."""
        concurrent.futures.wait([self.outcome], timeout=seconds)
        return self.is_over

    def wake(self) -> None:
        """In any thread, and in a signal's handler."""
        self._news.put(None)

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._task is not None:
            try:
                self._task.get_loop().call_soon_threadsafe(cancel_or_abandon, self._task)
            except RuntimeError:  # its loop has closed: it is over
                return
