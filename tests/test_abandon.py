"""Async user code that ignores its cancellation is left where it waits, and holds up nothing."""

import asyncio
import contextlib
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from contention import no_tasks_left
from turnwise.deadlines import call_with_deadline, calls, episode_task, run_sync
from turnwise.errors import DeadlineExceeded


@pytest.fixture(autouse=True)
def short_grace(monkeypatch):
    monkeypatch.setattr(calls, "GRACE_SECONDS", 0.05)
    monkeypatch.setattr(calls, "_logged", set())


async def ignores_cancellation():
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)


async def ignores_everything():
    while True:
        with contextlib.suppress(BaseException):
            await asyncio.sleep(3600)


async def never_waits_long():
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)


async def waits_for_a_future():
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.get_running_loop().create_future()


async def cleans_up_for_ever():
    try:
        await asyncio.sleep(3600)
    finally:
        await ignores_cancellation()


def gives_something_to_await():
    return ignores_cancellation()


def call(function, timeout=0.02):
    return call_with_deadline(function, timeout=timeout, waiting_for="the call")


@pytest.mark.parametrize(
    "function",
    [
        *(ignores_cancellation, ignores_everything, never_waits_long, waits_for_a_future),
        *(cleans_up_for_ever, gives_something_to_await),
    ],
)
def test_a_call_that_ignores_its_cancellation_is_abandoned(function, caplog):
    async def main():
        async with episode_task() as task:
            for _ in range(3):
                with pytest.raises(DeadlineExceeded, match=r"the call took longer than 0\.02 s"):
                    await call(function)
        assert asyncio.current_task().cancelling() == 0
        await asyncio.sleep(0.001)
        assert no_tasks_left()
        return task.num_abandoned

    with caplog.at_level(logging.WARNING, "turnwise"):
        assert run_sync(main()) == 3
    (record,) = caplog.records
    assert "the call ignored that it was cancelled" in record.message
    assert f"{__file__}:" in record.message


def test_cleaning_up_may_wait(monkeypatch):
    monkeypatch.setattr(calls, "GRACE_SECONDS", 60.0)
    cleaned = []

    async def careful():
        try:
            await asyncio.sleep(3600)
        finally:
            for _ in range(3):
                await asyncio.sleep(0.001)
            await asyncio.create_task(asyncio.sleep(0.001))
            cleaned.append(True)

    with pytest.raises(DeadlineExceeded):
        run_sync(call(careful))
    assert cleaned == [True]


def test_a_timeout_of_the_codes_own_is_its_own_business():
    """It may even ignore it for longer than the grace: nobody else has called it off."""

    async def slow_to_obey():
        try:
            async with asyncio.timeout(0.001):
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    await asyncio.sleep(4 * calls.GRACE_SECONDS)
                    raise
        except TimeoutError:
            await asyncio.sleep(2 * calls.GRACE_SECONDS)
            return "done"

    assert run_sync(call(slow_to_obey, timeout=60)) == "done"


SCRIPT = """
import asyncio, logging, sys
from test_abandon import call, ignores_everything
from turnwise.deadlines import calls, running, run_sync

logging.basicConfig()
calls.GRACE_SECONDS = running._ENDING_SECONDS = 0.05

async def leaves_a_task():
    asyncio.create_task(ignores_everything())
    await asyncio.sleep(0)

run_sync(leaves_a_task())
for _ in range(2):
    try:
        run_sync(call(ignores_everything))
    except TimeoutError as error:
        print(error)
"""


def test_what_is_left_does_not_keep_the_process():
    """Not even code that ignores the end of a coroutine, which Python brings about at its exit."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the call took longer") == 2
    assert done.stderr.count("abandoned after") == 1
    assert "Traceback" not in done.stderr
