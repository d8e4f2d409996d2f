"""Run other people's code, sync or async, with a deadline.

A user's function may block, so it never runs on the event loop: sync code gets a daemon thread
of its own. Python cannot kill a thread; one that overruns is left behind, named after what it
was doing, and cannot keep the process alive (an executor's threads would).
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from turnwise.errors import DeadlineExceeded

T = TypeVar("T")


async def call_with_deadline(
    function: Callable[..., Any],
    *args: Any,
    timeout: float | None,
    waiting_for: str,
    **kwargs: Any,
) -> Any:
    """Call `function`, awaiting it if it is async; `DeadlineExceeded` after `timeout` seconds."""
    try:
        async with asyncio.timeout(timeout):
            if inspect.iscoroutinefunction(function):
                return await function(*args, **kwargs)
            result = await _in_thread(lambda: function(*args, **kwargs), waiting_for)
            return await result if inspect.isawaitable(result) else result
    except TimeoutError as error:
        if isinstance(error, DeadlineExceeded) or timeout is None:
            raise
        raise DeadlineExceeded(
            f"{waiting_for} took longer than {timeout:g} s. "
            "Make it faster, or raise its limit in the configuration."
        ) from None


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
        except StopIteration:
            error = RuntimeError(f"{name} raised StopIteration")  # a future cannot carry it
        except BaseException as raised:  # sys.exit in user code must not end our thread silently
            error = raised if isinstance(raised, Exception) else RuntimeError(repr(raised))
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:  # the loop closed while an overrunning call was still at work
            return

    threading.Thread(target=work, name=f"turnwise: {name}", daemon=True).start()
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

    thread = threading.Thread(target=work, name="turnwise: run_sync", daemon=True)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]
