"""How many calls of a reward function run at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from turnwise.reward.function import RewardFunction

DEFAULT_CONCURRENCY = 16
PATIENCE_SECONDS = 5.0
"""A call that takes longer does not hold the others back any more."""

_LOG = logging.getLogger("turnwise")


class RewardLimit:
    """Lets a number of calls run at once, in one event loop.

    By default that is 16 for an async function and one for a plain one, which may keep state that
    is not safe to share. A call that hangs must not starve the others: after `PATIENCE_SECONDS` its
    slot is free, and from then on 16 calls run at once. A number that the user gave is kept to.
    """

    def __init__(self, function: RewardFunction, max_concurrency: int | None = None) -> None:
        self._name = function.name
        self._is_strict = max_concurrency is not None
        self._num_slots = max_concurrency or (DEFAULT_CONCURRENCY if function.is_async else 1)
        self._slots = asyncio.Semaphore(self._num_slots)

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for a slot, and hold it for one call."""
        await self._slots.acquire()
        if self._is_strict:
            try:
                yield
            finally:
                self._slots.release()
            return
        timer = asyncio.get_running_loop().call_later(PATIENCE_SECONDS, self._overrun)
        try:
            yield
        finally:
            if timer.when() > asyncio.get_running_loop().time():
                timer.cancel()
                self._slots.release()

    def _overrun(self) -> None:
        num_new = DEFAULT_CONCURRENCY - self._num_slots
        if num_new:
            _LOG.info(
                "a call of reward function %r takes longer than %g s; others run at the same "
                "time, up to %d at once (reward_concurrency=1 keeps them one at a time)",
                *(self._name, PATIENCE_SECONDS, DEFAULT_CONCURRENCY),
            )
        self._num_slots = DEFAULT_CONCURRENCY
        for _ in range(1 + num_new):
            self._slots.release()
