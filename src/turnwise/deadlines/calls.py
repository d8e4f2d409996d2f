"""Call a user's function, sync or async, with a time limit."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from turnwise.deadlines.abandon import Abandonable
from turnwise.deadlines.failures import contained, is_interrupt
from turnwise.errors import DeadlineExceeded

T = TypeVar("T")


async def call_with_deadline(
    function: Callable[..., Any],
    *args: Any,
    timeout: float | None,
    waiting_for: str,
    limit_name: str | None = None,
    **kwargs: Any,
) -> Any:
    """Call `function`, awaiting it if it is async; `DeadlineExceeded` after `timeout` seconds.

    Whatever it raises arrives as an `Exception`. `limit_name` is the setting that holds the limit.
    """

    def overrun() -> DeadlineExceeded:
        fix = f"raise {limit_name}" if limit_name else "give it more time"
        return DeadlineExceeded(
            f"{waiting_for} took longer than {timeout:g} s. Make it faster, or {fix}."
        )

    now = asyncio.get_running_loop().time()
    limit = asyncio.timeout_at(None if timeout is None else now + timeout)
    try:
        if is_async(function):
            result = function(*args, **kwargs)
        else:
            call = _in_thread(lambda: function(*args, **kwargs), waiting_for)
            # A loop that was blocked is late itself: a call that has ended by now is in time.
            try:
                await asyncio.wait({call}, timeout=timeout)
                if not call.done():
                    raise overrun()
                result = call.result()
            finally:
                call.cancel()  # what it raises too late is nobody's
        if not inspect.isawaitable(result):
            return result
        async with limit:
            coroutine = result if inspect.iscoroutine(result) else _wait(result)
            result = await Abandonable(coroutine, waiting_for, limit)
    except TimeoutError:
        if not limit.expired():
            raise  # the function's own, such as a socket's
    except BaseException as error:
        if isinstance(error, Exception) or is_interrupt(error):
            raise
        raise contained(error, waiting_for) from error
    else:
        # A bare `except:` in the function can swallow the cancellation and still return.
        if not limit.expired():
            return result
    raise overrun()


async def _wait(result: Awaitable[T]) -> T:
    return await result


def result_within(
    future: concurrent.futures.Future[T], seconds: float, waiting_for: str, fix: str
) -> T:
    """Wait for the result of another thread's work; `DeadlineExceeded` after `seconds`."""
    try:
        return future.result(seconds)
    except TimeoutError:
        if future.done():  # the work itself raised it, or has just ended
            return future.result()
    future.cancel()
    raise DeadlineExceeded(f"{waiting_for} took longer than {seconds:g} s. {fix}")


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether calling `function` gives a coroutine, partials and objects included."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        type(function).__call__
    )


def _in_thread(function: Callable[[], Any], name: str) -> asyncio.Future[Any]:
    """Call a function in a thread of its own; the future is the running loop's."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def finish(result: Any, error: BaseException | None) -> None:
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
            error = contained(raised, name)
        try:
            loop.call_soon_threadsafe(finish, result, error)
        except RuntimeError:  # the loop closed while an overrunning call was still running
            return

    context = contextvars.copy_context()
    threading.Thread(
        target=context.run, args=(work,), name=f"turnwise: {name}", daemon=True
    ).start()
    return future
