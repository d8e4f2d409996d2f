"""Run other people's code, sync or async, with a deadline.

A user's function may block, so it never runs on the event loop: sync code gets a daemon thread
of its own. Python cannot kill a thread; one that overruns is left behind, named after what it
was doing, and cannot keep the process alive (an executor's threads would). Async code runs on
the loop: it is cancelled when it overruns, but one that blocks instead of awaiting holds up all.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from turnwise.errors import DeadlineExceeded

T = TypeVar("T")


class Deadline:
    """`with Deadline(seconds) as limit:` ends what the task waits for in there, by a TimeoutError.

    As `asyncio.timeout` does, for less: all deadlines of a loop share one timer, since nearly all
    of them are met. None: no limit. It is only for the block that made it.
    """

    __slots__ = ("_alarm", "_cancelling", "_task", "expired", "when")

    def __init__(self, seconds: float | None) -> None:
        self.expired = False
        """Whether the time was up before the end."""
        self._alarm: _Alarm | None = None
        if seconds is not None:
            self._alarm = _alarm_of_this_loop()
            self.when = self._alarm.loop.time() + seconds

    def __enter__(self) -> Self:
        if self._alarm is not None:
            task = asyncio.current_task()
            assert task is not None, "a deadline is for a task"
            self._task = task
            self._cancelling = task.cancelling()
            self._alarm.add(self)
        return self

    def expire(self) -> None:
        self.expired = True
        self._task.cancel()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._alarm is None:
            return
        self._alarm.open.discard(self)
        # Whoever else cancelled the task meanwhile is obeyed.
        if (
            self.expired
            and self._task.uncancel() <= self._cancelling
            and kind is asyncio.CancelledError
        ):
            raise TimeoutError from error


class _Alarm:
    """The one timer of a loop: set to the first deadline that may be missed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.open: set[Deadline] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, deadline: Deadline) -> None:
        self.open.add(deadline)
        if self._timer is not None:
            if self._timer.when() <= deadline.when:
                return
            self._timer.cancel()
        self._timer = self.loop.call_at(deadline.when, self._ring)

    def _ring(self) -> None:
        now = self.loop.time()
        for deadline in [deadline for deadline in self.open if deadline.when <= now]:
            self.open.discard(deadline)
            deadline.expire()
        first = min((deadline.when for deadline in self.open), default=None)
        self._timer = None if first is None else self.loop.call_at(first, self._ring)


class _Here(threading.local):
    """The alarm of the loop that runs in this thread, or ran there last."""

    alarm: _Alarm | None = None


_HERE = _Here()


def _alarm_of_this_loop() -> _Alarm:
    loop, alarm = asyncio.get_running_loop(), _HERE.alarm
    if alarm is None or alarm.loop is not loop:
        alarm = _HERE.alarm = _Alarm(loop)
    return alarm


async def call_with_deadline(
    function: Callable[..., Any],
    *args: Any,
    timeout: float | None,
    waiting_for: str,
    **kwargs: Any,
) -> Any:
    """Call `function`, awaiting it if it is async; `DeadlineExceeded` after `timeout` seconds."""
    try:
        with Deadline(timeout) as limit:
            if is_async(function):
                result = await function(*args, **kwargs)
            else:
                result = await _in_thread(lambda: function(*args, **kwargs), waiting_for)
                if inspect.isawaitable(result):
                    result = await result
    except TimeoutError:
        if not limit.expired:
            raise  # the function's own, such as a socket's
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # Nobody cancelled us: something that the function waited for was. That is its failure.
        raise RuntimeError(f"{waiting_for} was cancelled from within") from None
    else:
        # A bare `except:` in the function can swallow the cancellation and still return.
        if not limit.expired:
            return result
    raise DeadlineExceeded(
        f"{waiting_for} took longer than {timeout:g} s. "
        "Make it faster, or raise its limit in the configuration."
    )


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling `function` gives a coroutine: also for partials and callable objects."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        type(function).__call__
    )


async def _in_thread(function: Callable[[], Any], name: str) -> Any:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def work() -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            result = function()
        except BaseException as raised:  # sys.exit in user code must not end our thread silently
            error = raised
            # A future cannot carry StopIteration, and what is no Exception would end the loop.
            if isinstance(raised, StopIteration) or not isinstance(raised, Exception):
                error = RuntimeError(f"{name} raised {raised!r}")
                error.__cause__ = raised
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:  # the loop closed while an overrunning call was still at work
            return

    context = contextvars.copy_context()
    threading.Thread(
        target=context.run, args=(work,), name=f"turnwise: {name}", daemon=True
    ).start()
    return await future


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end from ordinary code, also inside a notebook's running loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    outcome: list[T] = []
    failure: list[BaseException] = []

    def work() -> None:
        try:
            outcome.append(asyncio.run(coroutine))
        except BaseException as raised:
            failure.append(raised)

    context = contextvars.copy_context()
    thread = threading.Thread(
        target=context.run, args=(work,), name="turnwise: run_sync", daemon=True
    )
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]
