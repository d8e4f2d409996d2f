"""What episodes are waiting for, so that a run that does not move can say why."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter

_LOG = logging.getLogger("turnwise")


class Waits:
    """Counts who waits for what; `moved` is when anything last changed.

    >>> waits = Waits()
    >>> for what in ("the engine", "the engine", "a tool"):
    ...     now = waits.begin(what)
    >>> waits.report()
    '2 for the engine, 1 for a tool'
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.moved = time.monotonic()

    def begin(self, what: str) -> float:
        """One more waits for it, from now on: the time."""
        self.counts[what] += 1
        self.moved = now = time.monotonic()
        return now

    def end(self, what: str) -> float:
        """One less waits for it, from now on: the time."""
        self.counts[what] -= 1
        self.moved = now = time.monotonic()
        return now

    def report(self) -> str:
        """What is waited for, the most common first."""
        waiting = [(what, number) for what, number in self.counts.most_common() if number > 0]
        return ", ".join(f"{number} for {what}" for what, number in waiting) or "0 for anything"

    async def watch(self, report_after: float) -> None:
        """Log what is waited for whenever nothing has moved for so many seconds."""
        while True:
            quiet = time.monotonic() - self.moved
            if quiet < report_after:
                await asyncio.sleep(report_after - quiet)
                continue
            _LOG.warning("Nothing has moved for %.0f s. Waiting: %s.", quiet, self.report())
            await asyncio.sleep(report_after)
