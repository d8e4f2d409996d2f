"""Call a user's function, sync or async, with a time limit, and tell failures from interrupts."""

import asyncio
import concurrent.futures
import contextlib
import contextvars
import functools
import inspect
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from turnwise.errors import DeadlineExceeded, describe_error

T = TypeVar("T")

GRACE_SECONDS = 5.0
"""The time for cleaning up after a cancellation, which may itself await something."""
_PACKAGE = str(Path(__file__).parent.parent)
_LOG = logging.getLogger("turnwise")


def is_interrupt(error: BaseException) -> bool:
    """Return whether an exception ends the caller itself, and so is no failure of user code.

    Such are Ctrl-C, which arrives in the main thread only, the cancellation of this very task, and
    the end of a coroutine that is closed.
    """
    if isinstance(error, asyncio.CancelledError):
        try:
            task = asyncio.current_task()
        except RuntimeError:  # no loop runs in this thread
            return False
        return task is not None and task.cancelling() > 0
    if isinstance(error, KeyboardInterrupt):
        return threading.current_thread() is threading.main_thread()
    return isinstance(error, GeneratorExit)


def call_inline(function: Callable[[], T], what: str) -> T:
    """Call a function that awaits nothing; whatever it raises but Ctrl-C is an `Exception`."""
    try:
        return function()
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and is_interrupt(error):
            raise
        raise contained(error, what)  # noqa: B904 - it has its cause


def contained(error: BaseException, what: str) -> Exception:
    """Return what a call raised as an exception that ends neither an event loop nor a thread."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    failure = RuntimeError(f"{what} raised {describe_error(error)}")
    failure.__cause__ = error
    return failure


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
    if is_async(function):
        result = function(*args, **kwargs)
    else:
        work = functools.partial(function, *args, **kwargs)
        call = asyncio.wrap_future(in_daemon_thread(work, waiting_for))
        # A loop that was blocked is late itself: a call that has ended by now is in time.
        try:
            await asyncio.wait({call}, timeout=timeout)
            if not call.done():
                raise _overrun(waiting_for, timeout, limit_name)
            result = call.result()
        finally:
            call.cancel()  # what it raises too late is nobody's
    if not inspect.isawaitable(result):
        return result
    task = _episode_task.get()
    if task is None or task.is_busy or task.loop is not asyncio.get_running_loop():
        task = UserTask(is_single=True)
    outcome = await task.run(result, timeout, waiting_for)
    if outcome is None:
        raise _overrun(waiting_for, timeout, limit_name)
    return outcome.result()


def _overrun(what: str, timeout: float | None, limit_name: str | None) -> DeadlineExceeded:
    fix = f"raise {limit_name}" if limit_name else "give it more time"
    return DeadlineExceeded(f"{what} took longer than {timeout:g} s. Make it faster, or {fix}.")


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether calling `function` gives a coroutine, partials and objects included."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        type(function).__call__
    )


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


def resolve_future(
    future: concurrent.futures.Future[T], function: Callable[[], T], name: str = "a call"
) -> None:
    """Call a function, and set its result or its error in a future that is not cancelled.

    Whatever it raises arrives as an `Exception`.
    """
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function()
    except BaseException as error:  # sys.exit in user code must not end the thread silently
        future.set_exception(contained(error, name))
    else:
        future.set_result(result)


def in_daemon_thread(function: Callable[[], T], name: str) -> concurrent.futures.Future[T]:
    """`resolve_future` in a thread of its own, which cannot keep the process alive."""
    future: concurrent.futures.Future[T] = concurrent.futures.Future()
    threading.Thread(
        target=contextvars.copy_context().run,
        args=(resolve_future, future, function, name),
        name=f"turnwise: {name}",
        daemon=True,
    ).start()
    return future


class UserTask:
    """A task for async user code, one call after the other, which can be left behind.

    A task that swallows its cancellation cannot be ended from outside, so user code does not run in
    the task of its caller. The calls of one episode share a task: cancel scopes that one call
    opens and another closes, as clients of MCP servers do, must be of one task.
    """

    def __init__(self, *, is_single: bool = False) -> None:
        self.num_abandoned = 0
        """Calls in this task, and inside of those, that ignored their cancellation."""
        self.loop = asyncio.get_running_loop()
        self.is_busy = False
        self._is_single = is_single
        self._calls: asyncio.Queue[Any] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def run(
        self, awaitable: Awaitable[T], timeout: float | None, what: str
    ) -> asyncio.Future[T] | None:
        """Await something at most that long; return its outcome, None if it was late.

        If it is late, or the caller is cancelled, it is cancelled; if it still waits after
        `GRACE_SECONDS`, it is abandoned.
        """
        outcome: asyncio.Future[T] = self.loop.create_future()
        if self._task is None:
            self._calls = asyncio.Queue()
            self._task = asyncio.create_task(self._work(self._calls))
        self._calls.put_nowait((awaitable, outcome, what))
        if self._is_single:
            self._calls.put_nowait(None)
        self.is_busy = True
        try:
            await asyncio.wait({outcome}, timeout=timeout)
            if outcome.done():
                return outcome
        finally:
            self.is_busy = False
            if not outcome.done():
                await self._cancel(awaitable, outcome, what)
        return None  # also if it swallowed the cancellation, and still returned

    async def _work(self, calls: asyncio.Queue[Any]) -> None:
        task = asyncio.current_task()
        assert task is not None
        while (call := await calls.get()) is not None:
            awaitable, outcome, what = call
            try:
                result = await awaitable
            except BaseException as error:
                if outcome.done():  # it was abandoned before
                    return
                if isinstance(error, KeyboardInterrupt) and is_interrupt(error):
                    outcome.cancel()
                    raise
                outcome.set_exception(contained(error, what))
            else:
                if outcome.done():
                    return
                outcome.set_result(result)
            if task.cancelling():
                task.uncancel()

    async def _cancel(self, awaitable: Awaitable[T], outcome: asyncio.Future[T], what: str) -> None:
        task, self._task = self._task, None
        assert task is not None
        task.cancel()
        try:
            either: set[asyncio.Future[Any]] = {task, outcome}
            await asyncio.wait(either, timeout=GRACE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if outcome.done():
                outcome.exception()  # asyncio logs those that nobody has looked at
                self._task = task
            else:
                outcome.cancel()
                if not task.done():
                    _abandon(task, awaitable, what)
                elif inspect.iscoroutine(awaitable):  # it was never begun
                    awaitable.close()

    async def end(self) -> None:
        """End the task, which no call uses any more."""
        if self._task is not None:
            self._calls.put_nowait(None)
            await asyncio.wait({self._task})


_episode_task: contextvars.ContextVar[UserTask | None] = contextvars.ContextVar(
    "episode_task", default=None
)


@contextlib.asynccontextmanager
async def episode_task() -> AsyncIterator[UserTask]:
    """Give the async calls of user code inside the block one task, which counts the abandoned."""
    task = UserTask()
    token = _episode_task.set(task)
    try:
        yield task
    finally:
        _episode_task.reset(token)
        await task.end()


_logged: set[str] = set()
_kept: list[object] = []


def keep_for_ever(task: asyncio.Task[Any]) -> None:
    """Prevent a task that ignores its end from ever being finalized.

    Python closes a coroutine before it frees it, and code that ignores that as well would go on in
    a loop at the exit of the process: for ever. What a daemon thread refers to is not freed.
    """
    if not _kept:
        in_daemon_thread(functools.partial(_hold, _kept), "abandoned calls")
    _kept.append(task)


def _hold(_: list[object]) -> None:
    threading.Event().wait()


def _where_waiting(awaitable: Any) -> str:
    """Return where a suspended coroutine is, in the outermost code that is not turnwise's own."""
    while inspect.iscoroutine(awaitable):
        frame = awaitable.cr_frame
        if frame is not None and not frame.f_code.co_filename.startswith(_PACKAGE):
            code = frame.f_code
            return f" in {code.co_qualname} ({code.co_filename}:{frame.f_lineno})"
        awaitable = awaitable.cr_await
    return ""


def _abandon(task: asyncio.Task[None], awaitable: Awaitable[Any], what: str) -> None:
    keep_for_ever(task)
    episode = _episode_task.get()
    if episode is not None:
        episode.num_abandoned += 1
    if what not in _logged:
        _logged.add(what)
        _LOG.warning(
            "%s ignored that it was cancelled, and was abandoned after %g s%s. Let "
            "asyncio.CancelledError propagate, or raise it again. Further calls of it that are "
            "abandoned are only counted.",
            what,
            GRACE_SECONDS,
            _where_waiting(awaitable),
        )
