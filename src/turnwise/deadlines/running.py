"""Run a coroutine from sync code, and end the tasks that it leaves behind."""

import asyncio
import concurrent.futures
import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Generic, TypeVar

from turnwise.deadlines import calls
from turnwise.deadlines.calls import in_daemon_thread, keep_for_ever

T = TypeVar("T")

_SIGNAL_SECONDS = 0.2
"""The longest delay until a signal is handled."""
_LOG = logging.getLogger("turnwise")


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end from sync code, also inside a notebook's running loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run(coroutine)
    return in_daemon_thread(partial(_run, coroutine), "run_sync").result()


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    runner = asyncio.Runner(loop_factory=new_loop)
    try:
        return runner.run(coroutine)  # Ctrl-C cancels it, so that it cleans up
    finally:
        # `Runner.close` would wait for ever for a task that ignores its cancellation.
        close_loop(runner.get_loop())


def new_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop, which `close_loop` closes."""
    loop = asyncio.new_event_loop()
    loop.set_default_executor(_DaemonExecutor())
    return loop


def close_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Close a loop of this thread, with the tasks and generators that are left in it."""
    try:
        loop.run_until_complete(_end_tasks())
        ending = loop.create_task(loop.shutdown_asyncgens())
        loop.run_until_complete(asyncio.wait({ending}, timeout=calls.GRACE_SECONDS))
        if not ending.done():
            keep_for_ever(ending)
    finally:
        loop.close()


class _DaemonExecutor(concurrent.futures.ThreadPoolExecutor):
    """A thread for each call of `asyncio.to_thread`, which cannot keep the process alive."""

    def submit(
        self, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> concurrent.futures.Future[Any]:
        return in_daemon_thread(partial(function, *args, **kwargs), "to_thread")


async def _end_tasks() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        _, left = await asyncio.wait(left, timeout=calls.GRACE_SECONDS)
    for task in left:
        _LOG.warning("%s ignores its cancellation, and is abandoned", task.get_coro())
        keep_for_ever(task)


class LoopCall(Generic[T]):
    """Another thread's handle of a coroutine that runs in a `LoopThread`."""

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

    def cancel(self, seconds: float) -> bool:
        """Cancel the coroutine and give it some time to clean up; return whether it is over."""

        def cancel_task() -> None:
            assert self._task is not None, "it was started before"
            self._task.cancel()

        with contextlib.suppress(RuntimeError):  # the loop has closed: it is over
            self._loop.call_soon_threadsafe(cancel_task)
        concurrent.futures.wait([self.outcome], timeout=seconds)
        return self.is_over


class LoopThread:
    """A daemon thread that runs coroutines in one event loop, side by side.

    Thread and loop are the same for all of them, since user code may keep objects that belong to
    one, such as a database connection or an HTTP client. A thread that user code blocks is
    abandoned.
    """

    def __init__(self, name: str) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._work, name=f"turnwise: {name}", daemon=True)

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> LoopCall[T]:
        """Run a coroutine alongside the others."""
        if self.loop is None:
            self.loop = new_loop()
            self._thread.start()
        return LoopCall(coroutine, self.loop)

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function in the loop; does nothing if it does not run."""
        if self.loop is not None:
            with contextlib.suppress(RuntimeError):  # it has closed
                self.loop.call_soon_threadsafe(function)

    def end(self, seconds: float = 0.0) -> None:
        """Cancel what still runs, and let the thread end; wait for it that long."""
        if self.loop is not None:
            self.call_soon(self.loop.stop)
            self._thread.join(seconds)

    @property
    def ident(self) -> int:
        return self._thread.ident or 0

    def _work(self) -> None:
        assert self.loop is not None
        try:
            while True:
                # A task that exits ends the loop; it has its error, and the others go on.
                with contextlib.suppress(KeyboardInterrupt, SystemExit):
                    self.loop.run_forever()
                    break
        finally:
            close_loop(self.loop)
