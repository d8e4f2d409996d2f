"""Which exceptions are addressed to us, and which are a failure of the code that was called."""

from __future__ import annotations

import asyncio
import threading

from turnwise.errors import describe_error


def is_interrupt(error: BaseException) -> bool:
    """Whether an exception is addressed to whoever runs here, not raised by what they called.

    That is a cancellation of this very task, the user's Ctrl-C (which only the main thread gets),
    and the end of a coroutine that nobody runs any more.
    """
    if isinstance(error, KeyboardInterrupt):
        return threading.current_thread() is threading.main_thread()
    if not isinstance(error, asyncio.CancelledError | GeneratorExit):
        return False
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs here
        return isinstance(error, GeneratorExit)
    if isinstance(error, GeneratorExit):
        return task is None
    return task is not None and task.cancelling() > 0


def contained(error: BaseException, what: str) -> Exception:
    """What a call raised, as something that ends neither a loop nor a thread."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    words = f"raised {describe_error(error)}"
    if isinstance(error, asyncio.CancelledError):
        words = "was cancelled from within"  # something that it waited for was
    failure = RuntimeError(f"{what} {words}")
    failure.__cause__ = error
    return failure
