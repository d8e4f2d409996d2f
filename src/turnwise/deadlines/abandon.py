"""Leave async user code where it waits, if it ignores that it was cancelled.

A task that swallows its cancellation cannot be ended from outside. So user code does not get a
task: its coroutine is resumed from here, step by step, in the task of its caller (where cancel
scopes that it opens in one call and closes in another expect it). Code that still waits a while
after it was called off is not resumed any more: it holds up nothing, and never runs again.
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
"""For cleaning up after a cancellation, which may take awaiting."""

_PACKAGE = str(Path(__file__).resolve().parent.parent)
_LOG = logging.getLogger("turnwise")
_called_off: weakref.WeakKeyDictionary[asyncio.Task[Any], int] = weakref.WeakKeyDictionary()
_count: contextvars.ContextVar[int] = contextvars.ContextVar("abandoned_calls", default=0)
_logged: set[CodeType | str] = set()


def mark_called_off(task: asyncio.Task[Any]) -> None:
    """Nobody waits for what the task does any more: user code in it may be abandoned.

    A cancellation alone does not say so: user code cancels the task itself, and takes that back,
    where it uses `asyncio.timeout`.
    """
    _called_off[task] = _called_off.get(task, 0) + 1


def unmark_called_off(task: asyncio.Task[Any]) -> None:
    """The part of the task that was called off is over."""
    _called_off[task] -= 1


def call_off(task: asyncio.Task[Any]) -> None:
    """Cancel a task, and abandon user code in it that ignores that."""
    mark_called_off(task)
    task.cancel()


def keep_for_ever(left: object) -> None:
    """Take care that a coroutine or task that ignores its end is never finalized.

    Python ends a coroutine once more before it frees it. Code that ignores that as well would go on
    then, perhaps while the process ends and no loop runs that it could wait in: for ever.
    """
    import ctypes  # seldom needed

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(left))


def num_abandoned() -> int:
    """How many calls were abandoned so far in the current context, such as a task's."""
    return _count.get()


class Abandonable(Generic[T]):
    """`await Abandonable(coroutine, what)`: as `await coroutine`, but it always ends.

    When the task is called off, the coroutine is cancelled as usual. If it still waits after
    `GRACE_SECONDS`, it is cancelled once more; if it waits even then, it is abandoned, and the
    cancellation is raised here.
    """

    __slots__ = ("_coroutine", "_is_last", "_until", "_was_called_off", "_what")

    def __init__(self, coroutine: Coroutine[Any, Any, T], what: str) -> None:
        self._coroutine = coroutine
        self._what = what
        self._until: float | None = None
        """When it is cancelled for the last time, on the loop's clock; None: it was not yet."""
        self._was_called_off = False
        self._is_last = False

    def __await__(self) -> Generator[Any, Any, T]:
        resume: Any = self._coroutine.send
        value: Any = None
        while True:
            try:
                awaited = resume(value)
            except StopIteration as end:
                result: T = end.value
                return result
            if self._is_last:
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
        """Wait for what the coroutine waits for, with an eye on the clock."""
        loop = asyncio.get_running_loop()
        is_future = asyncio.isfuture(awaited) and awaited.get_loop() is loop
        if awaited is not None and not is_future:
            return (yield awaited)  # the task says what is wrong with it
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
        self._is_last = True
        raise asyncio.CancelledError

    def _begin_grace(self) -> None:
        if not self._was_called_off:
            self._was_called_off = _is_called_off()
            self._until = asyncio.get_running_loop().time() + GRACE_SECONDS

    def _is_time_up(self, now: float) -> bool:
        if self._until is None or now < self._until:
            return False
        if not _is_called_off():  # it was a timeout of its own, which does not concern us
            self._until = now + GRACE_SECONDS
            return False
        return True

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
    """Until it is done or the time has come; for None, until the others had their turn."""
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


def _is_called_off() -> bool:
    task = asyncio.current_task()
    return task is not None and _called_off.get(task, 0) > 0


def _frame_of_user(coroutine: Any) -> FrameType | None:
    """The outermost frame that is not of this package: what the user wrote, where it waits."""
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None and not frame.f_code.co_filename.startswith(_PACKAGE):
            return frame  # type: ignore[no-any-return]
        following = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
        coroutine = following
    return None
