"""Which exceptions interrupt the caller, and which are failures of the code that was called."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import threading
import traceback
from collections.abc import Awaitable
from typing import Any, TypeVar

from turnwise.errors import describe_error

T = TypeVar("T")


def is_interrupt(error: BaseException) -> bool:
    """Return whether an exception interrupts the caller itself, and so is no failure of user code.

    Such are the cancellation of this very task, the user's Ctrl-C (which only the main thread
    receives), and the `GeneratorExit` of a coroutine that is closed while no task runs it.
    """
    if isinstance(error, KeyboardInterrupt):
        return threading.current_thread() is threading.main_thread() and _is_from_signal(error)
    if not isinstance(error, asyncio.CancelledError | GeneratorExit):
        return False
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs here
        return isinstance(error, GeneratorExit)
    if isinstance(error, GeneratorExit):
        return task is None
    return task is not None and task.cancelling() > 0


def _is_from_signal(error: KeyboardInterrupt) -> bool:
    """Return whether Ctrl-C raised it, and not a `raise` in user code, as far as can be known.

    The function that handles signals is in the traceback, unless it is Python's own, of C.
    """
    handler: Any = signal.getsignal(signal.SIGINT)
    while isinstance(handler, functools.partial):
        handler = handler.func
    code = getattr(handler, "__code__", None)
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return code is None or any(frame.f_code is code for frame in frames)


def contained(error: BaseException, what: str) -> Exception:
    """Return what a call raised as an exception that ends neither an event loop nor a thread."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    words = f"raised {describe_error(error)}"
    if isinstance(error, asyncio.CancelledError):
        words = "was cancelled from within"  # something it awaited was cancelled
    failure = RuntimeError(f"{what} {words}")
    failure.__cause__ = error
    return failure


class ending_forked_copies:  # noqa: N801 - used like a function; a generator would cost 3 % of a turn
    """Ends the copy of this process that user code may fork inside the block, at once.

    The copy must not continue with our files and model. Of our threads it has only this one, and
    locks that the others held stay locked.
    """

    __slots__ = ("_process",)

    def __enter__(self) -> None:
        self._process = os.getpid()

    def __exit__(self, *_: object) -> None:
        if os.getpid() != self._process:
            os._exit(0)


async def contained_call(awaitable: Awaitable[T], what: str) -> T:
    """Await something whose failures must end neither the event loop nor this task's caller."""
    try:
        with ending_forked_copies():
            return await awaitable
    except BaseException as error:
        failure = contained(error, what)
        if failure is error or is_interrupt(error):
            raise
        raise failure  # noqa: B904 - it has its cause
