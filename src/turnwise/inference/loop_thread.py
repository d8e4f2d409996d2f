"""An event loop in its own thread, and the start of an engine within a deadline."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from turnwise.deadlines import result_within
from turnwise.errors import DeadlineExceeded, describe_error
from turnwise.tools.server_processes import ServerProcesses

S = TypeVar("S")
T = TypeVar("T")

_CLOSING_SECONDS = 60.0
"""Time limit for closing; afterwards the daemon thread is abandoned."""
_CANCEL_SECONDS = 5.0
_LOG = logging.getLogger("turnwise")
START_SECONDS = 900.0
"""Time limit for loading a model and capturing graphs, which takes minutes for a large one."""


def wait_for_start(future: Future[T], seconds: float | None, what: str) -> T:
    """Return the result of the start; raise `DeadlineExceeded` after `seconds` (None: never)."""
    if seconds is None:
        return future.result()
    fix = (
        "Its own log, above, says how far it came. If the model is large or the disk slow, give "
        "the engine more time: start_timeout=SECONDS (in a run inference.start_timeout), or None."
    )
    return result_within(future, seconds, f"starting {what}", fix)


@contextmanager
def own_processes() -> Iterator[None]:
    """Terminate the processes that are started in the block if it exceeds its deadline.

    They are recognised by an environment variable, which only spawned processes have; both
    engines spawn theirs.
    """
    processes = ServerProcesses()
    before = {name: os.environ.get(name) for name in processes.environment}
    os.environ.update(processes.environment)
    try:
        yield
    except DeadlineExceeded:
        processes.terminate()
        raise
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class LoopThread(Generic[S]):
    """Runs coroutines from any thread and any event loop in its own loop and thread.

    `begin` and `end` run in that thread before and after the loop; `start` raises what `begin`
    raises.
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
        """Start the thread; return what `begin` returns, or raise `DeadlineExceeded`."""
        self._thread.start()
        try:
            return wait_for_start(self._begun, seconds, what)
        except BaseException as error:
            self.is_closed = True  # nothing to close
            if isinstance(error, DeadlineExceeded):
                with contextlib.suppress(RuntimeError):  # the loop is closed already
                    self.loop.call_soon_threadsafe(self._cancel_begin)
            raise

    def _cancel_begin(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            task.cancel()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the loop; cancelling the future cancels it."""
        with self._closing:
            if self.is_closed:
                coroutine.close()
                raise RuntimeError("this engine is closed. Make a new one.")
            return asyncio.run_coroutine_threadsafe(self._tracked(coroutine), self.loop)

    def close(self, shutdown: Callable[[], Coroutine[Any, Any, None]], grace: float) -> None:
        """Run `shutdown`, which should end all calls; after `grace` seconds cancel the rest."""
        with self._closing:
            if self.is_closed:
                return
            self.is_closed = True
        ending = asyncio.run_coroutine_threadsafe(self._finish(shutdown, grace), self.loop)
        try:
            ending.result(grace + _CLOSING_SECONDS)
        except TimeoutError:
            ending.cancel()
            _LOG.warning("%s: running calls did not end and are abandoned", self._thread.name)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_CLOSING_SECONDS)
        if self._thread.is_alive():
            _LOG.warning("%s: the thread does not end and is abandoned", self._thread.name)

    async def _tracked(self, coroutine: Coroutine[Any, Any, T]) -> T:
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        try:
            return await coroutine
        finally:
            self._calls.discard(task)

    async def _finish(
        self, shutdown: Callable[[], Coroutine[Any, Any, None]], grace: float
    ) -> None:
        await shutdown()
        if self._calls:
            _, late = await asyncio.wait(set(self._calls), timeout=grace)
            for call in late:
                call.cancel()
            if late:  # one that ignores its cancellation is abandoned
                await asyncio.wait(late, timeout=_CANCEL_SECONDS)

    def _work(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            begun = self._begin()
        except BaseException as error:  # goes to `start`, also if `end` fails
            try:
                self._finally()
            finally:
                if self._begun.set_running_or_notify_cancel():
                    self._begun.set_exception(error)
            return
        if self._begun.set_running_or_notify_cancel():  # else `start` has given up
            self._begun.set_result(begun)
            self.loop.run_forever()
            self.loop.run_until_complete(self._end_tasks())
        self._finally()

    async def _end_tasks(self) -> None:
        """Cancel what `close` did not wait for, such as a shutdown that a blocked loop delayed."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CANCEL_SECONDS)

    def _finally(self) -> None:
        try:
            self._end()
        except Exception as error:  # no caller could handle it
            _LOG.warning("%s: ending failed: %s", self._thread.name, describe_error(error))
        finally:
            self.loop.close()
