"""Async user code that ignores its cancellation is abandoned where it waits.

A task that swallows its cancellation cannot be ended from outside. So user code gets no task of its
own: its coroutine is resumed from here, step by step, in the task of its caller (where cancel
scopes that it opens in one call and closes in another expect it). Code that still waits a while
after its cancellation is not resumed any more: it blocks nothing, and never runs again.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import weakref
from collections.abc import Coroutine, Generator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Generic, TypeVar

T = TypeVar("T")

GRACE_SECONDS = 5.0
"""The time for cleaning up after a cancellation, which may itself await something."""

_PACKAGE = str(Path(__file__).resolve().parent.parent)
_LOG = logging.getLogger("turnwise")
_abandonable_tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
_count: contextvars.ContextVar[int] = contextvars.ContextVar("abandoned_calls", default=0)
_logged: set[CodeType | str] = set()


def allow_abandoning(task: asyncio.Task[Any]) -> None:
    """Allow user code in a task to be abandoned if it ignores the task's cancellation.

    A cancellation alone does not allow it: user code that uses `asyncio.timeout` cancels the task
    itself, and takes that back.
    """
    _abandonable_tasks.add(task)


def cancel_or_abandon(task: asyncio.Task[Any]) -> None:
    """Cancel a task; user code in it that ignores the cancellation is abandoned."""
    allow_abandoning(task)
    task.cancel()


def keep_for_ever(left: object) -> None:
    """Prevent a coroutine or task that ignores its end from ever being finalized.

    Python closes a coroutine before it frees it. Code that ignores that as well would continue
    then, perhaps at the exit of the process, when no loop runs that it could wait in: for ever.
    """
    import ctypes  # seldom needed

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(left))


def num_abandoned() -> int:
    """Return how many calls were abandoned so far in the current context, such as a task's."""
    return _count.get()


class Abandonable(Generic[T]):
    """`await Abandonable(coroutine, what, limit)`: as `await coroutine`, but it always ends.

    When the limit expires or the task is cancelled for good, the coroutine is cancelled as usual.
    If it still waits after `GRACE_SECONDS`, it is cancelled once more; if it waits even then, it is
    abandoned, and the cancellation is raised here.
    """

    __slots__ = ("_coroutine", "_is_final", "_limit", "_until", "_was_given_up", "_what")

    def __init__(
        self, coroutine: Coroutine[Any, Any, T], what: str, limit: asyncio.Timeout
    ) -> None:
        self._coroutine = coroutine
        self._what = what
        self._limit = limit
        self._until: float | None = None
        """When it is cancelled for the last time, on the loop's clock; None before the first."""
        self._was_given_up = False
        self._is_final = False

    def __await__(self) -> Generator[Any, Any, T]:
        resume: Any = self._coroutine.send
        value: Any = None
        while True:
            try:
                awaited = resume(value)
            except StopIteration as end:
                result: T = end.value
                return result
            if self._is_final:
                self._abandon()
                raise asyncio.CancelledError
            try:
                # A plain future ends as soon as it is cancelled; a task may ignore that.
                if self._until is None and (awaited is None or type(awaited) is asyncio.Future):
                    value = yield awaited
                else:
                    value = yield from self._wait(awaited)
                resume = self._coroutine.send
            except BaseException as error:
                if isinstance(error, asyncio.CancelledError):
                    self._begin_grace()
                resume, value = self._coroutine.throw, error

    def _wait(self, awaited: Any) -> Generator[Any, Any, Any]:
        """Wait for what the coroutine waits for, at most until the grace is over."""
        loop = asyncio.get_running_loop()
        is_future = asyncio.isfuture(awaited) and awaited.get_loop() is loop
        if awaited is not None and not is_future:
            return (yield awaited)  # the task reports what is wrong with it
        if awaited is not None:
            awaited._asyncio_future_blocking = False  # the task does not see this one
        while not self._is_time_up(loop.time()):
            try:
                yield from _first_of(awaited, self._until, loop)
            except asyncio.CancelledError:
                self._begin_grace()
                if awaited is None or not awaited.cancel():
                    raise
            else:
                if awaited is None or awaited.done():
                    return None
        self._is_final = True
        raise asyncio.CancelledError

    def _begin_grace(self) -> None:
        if not self._was_given_up:
            self._was_given_up = self._is_given_up()
            self._until = asyncio.get_running_loop().time() + GRACE_SECONDS

    def _is_time_up(self, now: float) -> bool:
        if self._until is None or now < self._until:
            return False
        if not self._is_given_up():  # the code's own timeout cancelled it: it may take its time
            self._until = now + GRACE_SECONDS
            return False
        return True

    def _is_given_up(self) -> bool:
        return self._limit.expired() or asyncio.current_task() in _abandonable_tasks

    def _abandon(self) -> None:
        _count.set(_count.get() + 1)
        frame = _frame_of_user(self._coroutine)
        if (key := self._what if frame is None else frame.f_code) not in _logged:
            _logged.add(key)
            where = ""
            if frame is not None:
                code = frame.f_code
                where = f" {code.co_qualname} waits in {code.co_filename}:{frame.f_lineno}."
            _LOG.warning(
                "%s ignored that it was cancelled, and was abandoned after %g s.%s Let "
                "asyncio.CancelledError propagate, or raise it again. Further calls of it that are "
                "abandoned are only counted.",
                *(self._what, GRACE_SECONDS, where),
            )
        try:
            self._coroutine.close()
        except BaseException:  # it ignores that as well, or fails
            keep_for_ever(self._coroutine)


def _first_of(
    awaited: Any, until: float | None, loop: asyncio.AbstractEventLoop
) -> Generator[Any, Any, None]:
    """Wait until `awaited` is done or the time has come; None: until the next loop iteration."""
    relay: asyncio.Future[None] = loop.create_future()

    def wake(_: object = None) -> None:
        if not relay.done():
            relay.set_result(None)

    timer = None if until is None else loop.call_at(until, wake)
    if awaited is None:
        loop.call_soon(wake)
    else:
        awaited.add_done_callback(wake)
    try:
        yield from relay
    finally:
        if timer is not None:
            timer.cancel()
        if awaited is not None:
            awaited.remove_done_callback(wake)


def _frame_of_user(coroutine: Any) -> FrameType | None:
    """Return the outermost frame outside this package: where the code that the user wrote waits."""
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None and not frame.f_code.co_filename.startswith(_PACKAGE):
            return frame  # type: ignore[no-any-return]
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    return None
