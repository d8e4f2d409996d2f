"""Async user code that ignores its cancellation is left where it waits, and holds up nothing."""

import asyncio
import contextlib
import logging

import pytest

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


def call(function, timeout=0.02):
    return call_with_deadline(function, timeout=timeout, waiting_for="the call")


def test_a_call_that_ignores_its_cancellation_is_abandoned(caplog):
    async def main():
        async with episode_task() as task:
            for _ in range(3):
                with pytest.raises(DeadlineExceeded, match=r"the call took longer than 0\.02 s"):
                    await call(ignores_cancellation)
        assert asyncio.current_task().cancelling() == 0
        return task.num_abandoned

    with caplog.at_level(logging.WARNING, "turnwise"):
        assert run_sync(main()) == 3
    (said,) = [r.message for r in caplog.records if "the call ignored that it was" in r.message]
    assert f"after 0.05 s in ignores_cancellation ({__file__}:" in said


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
