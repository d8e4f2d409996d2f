"""An event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from turnwise.errors import DeadlineExceeded, describe_error
from turnwise.inference.starting import wait_for_start

S = TypeVar("S")
T = TypeVar("T")

_CLOSING_SECONDS = 60.0
"""For what closing waits for; afterwards the thread, a daemon, is left behind."""
_CANCEL_SECONDS = 5.0
_LOG = logging.getLogger("turnwise")


class LoopThread(Generic[S]):
    """Takes calls from any thread and any event loop, and runs them together in its own.

    `begin` and `end` run in the thread too, before and after the loop does; what `begin` raises
    goes to whoever makes it.
    """

    def __init__(self, name: str, begin: Callable[[], S], end: Callable[[], None]) -> None:
        self.loop = asyncio.new_event_loop()
        self.is_closed = False
        self._closing = threading.Lock()
        self._calls: set[asyncio.Task[Any]] = set()
        self._begin = begin
        self._end = end
        self._begun: Future[S] = Future()
        self._thread = threading.Thread(target=self._work, name=f"turnwise: {name}", daemon=True)

    def start(self, seconds: float | None = None, what: str = "the engine") -> S:
        """What `begin` returns; `DeadlineExceeded` if that takes longer. None: no limit."""
        self._thread.start()
        try:
            return wait_for_start(self._begun, seconds, what)
        except BaseException as error:
            self.is_closed = True  # there is nothing to close
            if isinstance(error, DeadlineExceeded):
                with contextlib.suppress(RuntimeError):  # it has closed its loop by now
                    self.loop.call_soon_threadsafe(self._cancel_begin)
            raise

    def _cancel_begin(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            task.cancel()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine; cancelling its future cancels it."""
        with self._closing:
            if self.is_closed:
                coroutine.close()
                raise RuntimeError("this engine is closed. Make a new one.")
            return asyncio.run_coroutine_threadsafe(self._tracked(coroutine), self.loop)

    def close(self, shutdown: Callable[[], Coroutine[Any, Any, None]], grace: float) -> None:
        """Run `shutdown`, which should end the calls; those that last longer are cancelled."""
        with self._closing:
            if self.is_closed:
                return
            self.is_closed = True
        ending = asyncio.run_coroutine_threadsafe(self._finish(shutdown(), grace), self.loop)
        try:
            ending.result(grace + _CLOSING_SECONDS)
        except TimeoutError:
            _LOG.warning("%s: calls under way did not end; they are left", self._thread.name)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_CLOSING_SECONDS)
        if self._thread.is_alive():
            _LOG.warning("%s: it does not end, and is left behind", self._thread.name)

    async def _tracked(self, coroutine: Coroutine[Any, Any, T]) -> T:
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        try:
            return await coroutine
        finally:
            self._calls.discard(task)

    async def _finish(self, shutdown: Coroutine[Any, Any, None], grace: float) -> None:
        await shutdown
        if self._calls:
            _, late = await asyncio.wait(set(self._calls), timeout=grace)
            for call in late:
                call.cancel()
            if late:  # one that ignores its cancellation is not waited for
                await asyncio.wait(late, timeout=_CANCEL_SECONDS)

    def _work(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            begun = self._begin()
        except BaseException as error:  # goes to whoever waits for it, also if `end` fails
            try:
                self._finally()
            finally:
                if self._begun.set_running_or_notify_cancel():
                    self._begun.set_exception(error)
            return
        if self._begun.set_running_or_notify_cancel():  # else it is too late
            self._begun.set_result(begun)
            self.loop.run_forever()
        self._finally()

    def _finally(self) -> None:
        try:
            self._end()
        except Exception as error:  # nobody is left who could act on it
            _LOG.warning("%s: ending failed: %s", self._thread.name, describe_error(error))
        finally:
            self.loop.close()
