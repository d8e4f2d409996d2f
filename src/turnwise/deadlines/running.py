"""Run a coroutine from sync code, and end the tasks that it leaves behind."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from types import FrameType
from typing import Any, TypeVar

from turnwise.deadlines.calls import in_daemon_thread, keep_for_ever

T = TypeVar("T")

_ENDING_SECONDS = 5.0
"""The time for tasks that still run when the loop ends; those that ignore it are abandoned."""
_LOG = logging.getLogger("turnwise")


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end from sync code, also inside a notebook's running loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run(coroutine)
    return in_daemon_thread(lambda: _run(coroutine), "run_sync").result()


def resolve_future(future: concurrent.futures.Future[T], function: Callable[[], T]) -> None:
    """Call a function, and set its result or its error in a future that is not cancelled."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function()
    except BaseException as error:  # raised where the result is awaited
        future.set_exception(error)
    else:
        future.set_result(result)


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    # `asyncio.run` would wait for ever for a task that ignores its cancellation.
    loop = new_loop()
    task = loop.create_task(coroutine)
    try:
        with _cancelled_by_ctrl_c(task, loop):
            return loop.run_until_complete(task)
    finally:
        close_loop(loop)


def new_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop, which `close_loop` closes."""
    loop = asyncio.new_event_loop()
    loop.set_default_executor(_DaemonExecutor())
    return loop


def close_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Close a loop of this thread, with the tasks and generators that are left in it."""
    try:
        loop.run_until_complete(_end_tasks())
        loop.run_until_complete(
            asyncio.wait({loop.create_task(loop.shutdown_asyncgens())}, timeout=_ENDING_SECONDS)
        )
    finally:
        loop.close()


class _DaemonExecutor(concurrent.futures.ThreadPoolExecutor):
    """A thread for each call of `asyncio.to_thread`, which cannot keep the process alive."""

    def submit(
        self, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> concurrent.futures.Future[Any]:
        return in_daemon_thread(partial(function, *args, **kwargs), "to_thread")


@contextlib.contextmanager
def _cancelled_by_ctrl_c(
    task: asyncio.Task[Any], loop: asyncio.AbstractEventLoop
) -> Iterator[None]:
    """The first Ctrl-C cancels the task, so that it cleans up; a second one raises at once."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    num_signals = 0

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal num_signals
        num_signals += 1
        if num_signals > 1 or task.done():
            raise KeyboardInterrupt
        task.cancel()
        loop.call_soon_threadsafe(lambda: None)  # wakes the loop up

    signal.signal(signal.SIGINT, on_signal)
    try:
        yield
    except asyncio.CancelledError:
        if num_signals:
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


async def _end_tasks() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        _, left = await asyncio.wait(left, timeout=_ENDING_SECONDS)
    for task in left:
        _LOG.warning("%s ignores its cancellation, and is abandoned", task.get_coro())
        keep_for_ever(task)
