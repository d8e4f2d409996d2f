"""Event loops whose time is the test's: no stall of the machine can end a wait."""

import asyncio
import selectors
from types import SimpleNamespace

import pytest

from turnwise.episode import watchdog


class Clock(selectors.DefaultSelector):
    """The time of a loop: it passes only when a test adds to `now`, from any thread.

    The loop sees that after its next wait: not between the start of a call and that of its limit.
    """

    now = 0.0

    def select(self, timeout=None):
        return super().select(timeout and min(timeout, 0.01))


class QuickClock(Clock):
    """Nothing is waited for: the clock moves on by what a wait would have taken."""

    def select(self, timeout=None):
        self.now += timeout or 0.0
        return super().select(0)


def run_in_virtual_time(coroutine, clock=None, late=0.0):
    """Runs a coroutine in a loop with this clock; every wait ends `late` seconds after its time.

    The time limits of episodes go by the same clock.
    """
    clock = clock or QuickClock()
    loop = asyncio.SelectorEventLoop(clock)
    select, seen = clock.select, clock.now

    def wait(timeout=None):
        nonlocal seen
        events = select(timeout)
        seen = clock.now
        return events

    clock.select = wait
    loop.time = lambda: seen + late * (seen > 0)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(watchdog, "time", SimpleNamespace(monotonic=loop.time))
            return loop.run_until_complete(coroutine)
    finally:
        loop.close()
