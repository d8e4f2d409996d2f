"""Call a user's function, sync or async, with a time limit, and tell failures from interrupts."""

import asyncio
import concurrent.futures
import contextlib
import contextvars
import functools
import inspect
import logging
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeVar

from turnwise.errors import DeadlineExceeded, describe_error

T = TypeVar("T")


def is_interrupt(error: BaseException) -> bool:
    """Return whether an exception interrupts the caller itself, and so is no failure of user code.

    Such are the cancellation of this very task, the user's Ctrl-C (which only the main thread
    receives), and the `GeneratorExit` of a coroutine that is closed while no task runs it.
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


GRACE_SECONDS = 5.0
"""The time for cleaning up after a cancellation, which may itself await something."""

_PACKAGE = str(Path(__file__).resolve().parent.parent)
_LOG = logging.getLogger("turnwise")


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
    return await await_with_deadline(
        result, timeout=timeout, waiting_for=waiting_for, limit_name=limit_name
    )


async def await_with_deadline(
    awaitable: Awaitable[T],
    *,
    timeout: float | None,
    waiting_for: str,
    limit_name: str | None = None,
) -> T:
    """`call_with_deadline` for an async function that was called already."""
    task = _episode_task.get()
    if task is None or not task.is_free:
        task = UserTask(is_single=True)
    outcome = await task.run(awaitable, timeout, waiting_for)
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


def in_daemon_thread(function: Callable[[], T], name: str) -> concurrent.futures.Future[T]:
    """Call a function in a thread of its own, which cannot keep the process alive.

    Whatever it raises arrives as an `Exception`.
    """
    future: concurrent.futures.Future[T] = concurrent.futures.Future()

    def work() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            with ending_forked_copies():
                result = function()
        except BaseException as error:  # sys.exit in user code must not end the thread silently
            future.set_exception(contained(error, name))
        else:
            future.set_result(result)

    context = contextvars.copy_context()
    threading.Thread(
        target=context.run, args=(work,), name=f"turnwise: {name}", daemon=True
    ).start()
    return future


# -- async code ------------------------------------------------------------------------------------


class UserTask:
    """A task for async user code, one call after the other, which can be left behind.

    A task that swallows its cancellation cannot be ended from outside, so user code does not run in
    the task of its caller. The calls of one episode share a task: cancel scopes that one call
    opens and another closes, as clients of MCP servers do, must be of one task.
    """

    def __init__(self, *, is_single: bool = False) -> None:
        self.num_abandoned = 0
        """Calls in this task, and inside of those, that ignored their cancellation."""
        self._loop = asyncio.get_running_loop()
        self._is_single = is_single
        self._is_busy = False
        self._calls: asyncio.Queue[Any] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._is_cancelled = False

    @property
    def is_free(self) -> bool:
        """Whether a call may begin: none is under way, and its loop is the running one."""
        return not self._is_busy and self._loop is asyncio.get_running_loop()

    async def run(
        self, awaitable: Awaitable[T], timeout: float | None, what: str
    ) -> asyncio.Future[T] | None:
        """Await something at most that long; return its outcome, None if it was late.

        If it is late, or the caller is cancelled, it is cancelled; if it still waits after
        `GRACE_SECONDS`, it is abandoned.
        """
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        outcome.add_done_callback(_look_at)
        if self._task is None or self._task.done():
            self._calls = asyncio.Queue()
            self._task = asyncio.create_task(self._work(self._calls))
        self._calls.put_nowait((awaitable, outcome, what))
        if self._is_single:
            self._calls.put_nowait(None)
        self._is_busy, is_late = True, False
        try:
            await asyncio.wait({outcome}, timeout=timeout)
            is_late = not outcome.done()
        finally:
            if not outcome.done():
                # Less for a call inside of one that is cancelled, which is waited for as well.
                grace = GRACE_SECONDS if is_late else GRACE_SECONDS / 2
                await self._cancel(self._task, awaitable, outcome, grace, what)
            self._is_busy = False
        # A bare `except:` in the code can swallow the cancellation and still return.
        return None if is_late else outcome

    async def _work(self, calls: asyncio.Queue[Any]) -> None:
        task = asyncio.current_task()
        assert task is not None
        while (call := await calls.get()) is not None:
            awaitable, outcome, what = call
            try:
                with ending_forked_copies():
                    result = await awaitable
            except BaseException as error:
                was_asked = self._is_cancelled and isinstance(error, asyncio.CancelledError)
                if outcome.done() or (is_interrupt(error) and not was_asked):
                    outcome.cancel()
                    raise
                outcome.set_exception(contained(error, what))
            else:
                if outcome.done():  # it was abandoned before
                    return
                outcome.set_result(result)
            if self._is_cancelled:
                self._is_cancelled = False
                task.uncancel()

    async def _cancel(
        self,
        task: asyncio.Task[None],
        awaitable: Awaitable[T],
        outcome: asyncio.Future[T],
        grace: float,
        what: str,
    ) -> None:
        self._is_cancelled = True
        task.cancel()
        try:
            either: set[asyncio.Future[Any]] = {task, outcome}
            await asyncio.wait(either, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not outcome.done():
                outcome.cancel()
                self._task, self._is_cancelled = None, False
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


def _look_at(future: asyncio.Future[Any]) -> None:
    """Asyncio logs the errors of futures that nobody has looked at."""
    if not future.cancelled():
        future.exception()


def _abandon(task: asyncio.Task[None], awaitable: Awaitable[Any], what: str) -> None:
    episode = _episode_task.get()
    if episode is not None:
        episode.num_abandoned += 1
    frame = _user_frame(awaitable)
    if (key := what if frame is None else frame.f_code) not in _logged:
        _logged.add(key)
        where = ""
        if frame is not None:
            code = frame.f_code
            where = f" {code.co_qualname} waits in {code.co_filename}:{frame.f_lineno}."
        _LOG.warning(
            "%s ignored that it was cancelled, and was abandoned after %g s.%s Let "
            "asyncio.CancelledError propagate, or raise it again. Further calls of it that are "
            "abandoned are only counted.",
            what,
            GRACE_SECONDS,
            where,
        )
    task.add_done_callback(_look_at)
    task.cancel()
    try:
        task.get_coro().close()  # ends code that only ignores its cancellation
    except BaseException:  # it ignores that as well, or fails
        keep_for_ever(awaitable)


_logged: set[CodeType | str] = set()


def _user_frame(awaitable: Any) -> FrameType | None:
    """Return the outermost frame outside this package: where the code that the user wrote waits."""
    while awaitable is not None:
        frame = getattr(awaitable, "cr_frame", None) or getattr(awaitable, "gi_frame", None)
        if frame is not None and not frame.f_code.co_filename.startswith(_PACKAGE):
            return frame  # type: ignore[no-any-return]
        awaitable = getattr(awaitable, "cr_await", None) or getattr(awaitable, "gi_yieldfrom", None)
    return None


_kept: list[object] = []


def keep_for_ever(left: object) -> None:
    """Prevent a coroutine or task that ignores its end from ever being finalized.

    Python closes a coroutine before it frees it. Code that ignores that as well, in a loop, would
    go on at the exit of the process, when no event loop runs that it could wait in: for ever. What
    a daemon thread refers to is not freed.
    """
    if not _kept:
        threading.Thread(
            target=_hold, args=(_kept,), name="turnwise: abandoned calls", daemon=True
        ).start()
    _kept.append(left)


def _hold(kept: list[object]) -> None:
    threading.Event().wait()
