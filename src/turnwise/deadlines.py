"""Run other people's code, sync or async, with a deadline.

A user's function may block, so it never runs on the event loop: sync code gets a daemon thread
of its own. Python cannot kill a thread; one that overruns is left behind, named after what it
was doing, and cannot keep the process alive (an executor's threads would). Async code runs on
the loop: it is cancelled when it overruns, and again if it ignores that; but one that blocks
instead of awaiting holds up all.

Whatever other people's code raises is its failure, also what is no `Exception`. Only what is
addressed to us passes through as it is (`is_interrupt`).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import functools
import inspect
import logging
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

from turnwise.errors import DeadlineExceeded, describe_error

T = TypeVar("T")

_CANCEL_AGAIN_SECONDS = 10.0
"""For cleaning up after a cancellation; code that still waits then is cancelled once more."""
_ENDING_SECONDS = 5.0
"""For the tasks that are left when a loop ends; those that ignore their cancellation are left."""
_LOG = logging.getLogger("turnwise")


class Deadline:
    """`with Deadline(seconds) as limit:` ends what the task waits for in there, by a TimeoutError.

    As `asyncio.timeout` does, for less: all deadlines of a loop share one timer, since nearly all
    of them are met. None: no limit. It is only for the block that made it.
    """

    __slots__ = ("_alarm", "_cancelling", "_num_cancels", "_task", "expired", "when")

    def __init__(self, seconds: float | None) -> None:
        self.expired = False
        """Whether the time was up before the end."""
        self._num_cancels = 0
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
        self._num_cancels += 1
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
        if not self.expired:
            return
        for _ in range(self._num_cancels):
            self._task.uncancel()
        # Whoever else cancelled the task meanwhile is obeyed.
        if kind is asyncio.CancelledError and self._task.cancelling() <= self._cancelling:
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
            deadline.when = now + _CANCEL_AGAIN_SECONDS
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
    limit_name: str | None = None,
    **kwargs: Any,
) -> Any:
    """Call `function`, awaiting it if it is async; `DeadlineExceeded` after `timeout` seconds.

    What it raises is an `Exception` in any case. `limit_name` is the setting that holds the limit.
    """
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
    except BaseException as error:
        if isinstance(error, Exception) or is_interrupt(error):
            raise
        raise contained(error, waiting_for) from error
    else:
        # A bare `except:` in the function can swallow the cancellation and still return.
        if not limit.expired:
            return result
    raise DeadlineExceeded(
        f"{waiting_for} took longer than {timeout:g} s. "
        f"Make it faster, or {f'raise {limit_name}' if limit_name else 'give it more time'}."
    )


def result_within(
    future: concurrent.futures.Future[T], seconds: float, waiting_for: str, fix: str
) -> T:
    """What another thread works out; `DeadlineExceeded` after so many seconds."""
    try:
        return future.result(seconds)
    except TimeoutError:
        if future.done():  # the work's own, such as a socket's; or it has just ended
            return future.result()
    future.cancel()
    raise DeadlineExceeded(f"{waiting_for} took longer than {seconds:g} s. {fix}")


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
            error = contained(raised, name)
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
        return _run(coroutine)
    outcome: list[T] = []
    failure: list[BaseException] = []

    def work() -> None:
        try:
            outcome.append(_run(coroutine))
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


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, which waits for ever for what ignores its cancellation."""
    loop = asyncio.new_event_loop()
    loop.set_default_executor(_DaemonExecutor())
    task = loop.create_task(coroutine)
    try:
        with _cancelled_by_ctrl_c(task, loop):
            return loop.run_until_complete(task)
    finally:
        try:
            loop.run_until_complete(_end_tasks())
        finally:
            loop.close()


class _DaemonExecutor(concurrent.futures.ThreadPoolExecutor):
    """A thread for each call of `asyncio.to_thread`, which cannot keep the process alive."""

    def submit(
        self, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> concurrent.futures.Future[Any]:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = function(*args, **kwargs)
            except BaseException as error:  # goes to whoever waits for it
                future.set_exception(contained(error, "a call in a thread"))
            else:
                future.set_result(result)

        threading.Thread(target=work, name="turnwise: to_thread", daemon=True).start()
        return future


@contextlib.contextmanager
def _cancelled_by_ctrl_c(
    task: asyncio.Task[Any], loop: asyncio.AbstractEventLoop
) -> Iterator[None]:
    """The first Ctrl-C cancels the task, so that it cleans up; a second one leaves at once."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    num_heard = 0

    def hear(number: int, frame: FrameType | None) -> None:
        nonlocal num_heard
        num_heard += 1
        if num_heard > 1 or task.done():
            raise KeyboardInterrupt
        task.cancel()
        loop.call_soon_threadsafe(lambda: None)  # it may be asleep

    signal.signal(signal.SIGINT, hear)
    try:
        yield
    except asyncio.CancelledError:
        if num_heard:
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


async def _end_tasks() -> None:
    loop = asyncio.get_running_loop()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        _, left = await asyncio.wait(left, timeout=_ENDING_SECONDS)
    for task in left:
        _LOG.warning("%s ignores its cancellation, and is left", task.get_coro())
    closing = asyncio.ensure_future(loop.shutdown_asyncgens())
    await asyncio.wait({closing}, timeout=_ENDING_SECONDS)
