"""Deadlines: user code runs off the loop, overruns are cut, and failures keep their meaning."""

import asyncio
import contextvars
import functools
import os
import signal
import subprocess
import sys
import threading

import pytest

from turnwise.deadlines import LoopThread, call_with_deadline, is_interrupt, run_sync
from turnwise.deadlines.unresponsive import is_stopped
from turnwise.errors import DeadlineExceeded
from virtual_time import QuickClock, run_in_virtual_time


def call(function, *args, timeout=60.0, **kwargs):
    return asyncio.run(
        call_with_deadline(function, *args, timeout=timeout, waiting_for="the test", **kwargs)
    )


def add(a, b=0):
    return a + b


async def add_async(a, b=0):
    await asyncio.sleep(0)
    return a + b


def gives_a_coroutine(a, b):
    return add_async(a, b)


class AsyncAdder:
    async def __call__(self, a, b=0):
        return a + b


@pytest.mark.parametrize(
    "function",
    [
        add,
        add_async,
        AsyncAdder(),
        functools.partial(add_async),
        functools.partial(AsyncAdder()),
        gives_a_coroutine,
    ],
)
@pytest.mark.parametrize("timeout", [None, 60.0])
def test_sync_and_async_callables_give_their_value(function, timeout):
    assert call(function, 2, b=3, timeout=timeout) == 5


def test_a_call_that_ended_while_the_loop_was_blocked_is_in_time():
    clock, is_blocked = QuickClock(), threading.Event()

    def block():
        is_blocked.set()
        for thread in threading.enumerate():
            if thread.name == "turnwise: the test":
                thread.join(60)
        clock.now += 10.0

    async def main():
        asyncio.get_running_loop().call_soon(block)
        return await call_with_deadline(is_blocked.wait, 60, timeout=1.0, waiting_for="the test")

    assert run_in_virtual_time(main(), clock)


def raise_timeout():
    raise TimeoutError("the socket gave up")


async def raise_timeout_async():
    raise TimeoutError("the socket gave up")


@pytest.mark.parametrize("function", [raise_timeout, raise_timeout_async])
@pytest.mark.parametrize("timeout", [None, 60.0])
def test_a_timeout_of_the_functions_own_is_not_called_a_deadline(function, timeout):
    with pytest.raises(TimeoutError, match="the socket gave up") as caught:
        call(function, timeout=timeout)
    assert not isinstance(caught.value, DeadlineExceeded)


@pytest.mark.parametrize("kind", [asyncio.Event, threading.Event])
def test_cancelling_the_caller_cancels_the_call(kind):
    release = kind()

    async def main():
        task = asyncio.create_task(
            call_with_deadline(release.wait, timeout=60.0, waiting_for="the test")
        )
        await asyncio.sleep(0.02)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
    release.set()


def test_threads_see_the_callers_context():
    request = contextvars.ContextVar("request", default="none")
    request.set("seven")
    assert call(request.get) == "seven"


ABANDONED_THREAD = """
import asyncio, time
from turnwise.deadlines import call_with_deadline
try:
    asyncio.run(call_with_deadline(time.sleep, 60, timeout=0.05, waiting_for='x'))
except TimeoutError:
    print('cut')
"""
ABANDONED_TASKS = """
import asyncio, logging
from turnwise.deadlines import call_with_deadline, calls, run_sync
logging.disable()
calls.GRACE_SECONDS = 0.05
async def stubborn():
    while True:
        try:
            await asyncio.sleep(0.05)
        except BaseException:
            pass
async def generate():
    while True:
        try:
            yield
        except BaseException:
            await stubborn()
async def main():
    generator = generate()
    await anext(generator)
    left = asyncio.create_task(stubborn())
    await call_with_deadline(stubborn, timeout=0.05, waiting_for='x')
try:
    run_sync(main())
except TimeoutError:
    print('cut')
"""


@pytest.mark.parametrize("script", [ABANDONED_THREAD, ABANDONED_TASKS])
def test_what_is_abandoned_does_not_keep_the_process_alive(script):
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": ":".join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "cut\n"
    assert done.stderr == ""


def test_a_cancellation_is_judged_without_a_running_loop():
    assert not is_interrupt(asyncio.CancelledError())


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="it is read there")
def test_a_process_that_is_stopped_is_known_as_such():
    with subprocess.Popen(["sleep", "60"]) as process:
        assert not is_stopped(process.pid)
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        assert is_stopped(process.pid)
        process.kill()


def test_run_sync_inside_a_running_loop():
    request = contextvars.ContextVar("request", default="none")

    async def inner():
        return request.get()

    async def main():
        request.set("seven")
        return run_sync(inner())

    assert asyncio.run(main()) == "seven"


def test_run_sync_raises_what_the_coroutine_raises():
    async def fail():
        raise ZeroDivisionError("here")

    async def main():
        return run_sync(fail())

    with pytest.raises(ZeroDivisionError, match="here"):
        run_sync(fail())
    with pytest.raises(ZeroDivisionError, match="here"):
        asyncio.run(main())


def test_a_task_that_exits_does_not_end_the_loop_of_the_others():
    async def quit():
        raise KeyboardInterrupt

    async def gather():
        async with asyncio.TaskGroup() as group:
            group.create_task(quit())

    thread = LoopThread("test")
    with pytest.raises(KeyboardInterrupt):
        thread.submit(gather()).outcome.result(20)
    assert thread.submit(asyncio.sleep(0, "goes on")).outcome.result(20) == "goes on"
    thread.end()
