"""`FastTimeout`: `asyncio.timeout` with one timer for all time limits of an event loop.

Nearly all limits are met, so a timer for each would be created only to be cancelled.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Self


class FastTimeout:
    """`async with FastTimeout(seconds) as limit`: works as `asyncio.timeout(seconds)` does."""

    __slots__ = ("_cancelling", "_expired", "_seconds", "_task", "_timer", "when")

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._expired = False
        self._timer: _SharedTimer | None = None

    def expired(self) -> bool:
        """Returns whether the time was up before the block ended."""
        return self._expired

    async def __aenter__(self) -> Self:
        if self._seconds is not None:
            task = asyncio.current_task()
            assert task is not None, "a time limit needs a task"
            self._task = task
            self._cancelling = task.cancelling()
            self._timer = _timer_of_this_loop()
            self.when = self._timer.loop.time() + self._seconds
            self._timer.add(self)
        return self

    def cancel_task(self) -> None:
        self._expired = True
        self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        if self._timer is not None:
            self._timer.pending.discard(self)
        # If someone else cancelled the task as well, the cancellation propagates.
        is_only_ours = self._expired and self._task.uncancel() <= self._cancelling
        if is_only_ours and kind is asyncio.CancelledError:
            raise TimeoutError from error


class _SharedTimer:
    """The timer of one event loop, set to the first limit that may be exceeded."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.pending: set[FastTimeout] = set()
        self._handle: asyncio.TimerHandle | None = None

    def add(self, limit: FastTimeout) -> None:
        self.pending.add(limit)
        if self._handle is not None:
            if self._handle.when() <= limit.when:
                return
            self._handle.cancel()
        self._handle = self.loop.call_at(limit.when, self._cancel_expired)

    def _cancel_expired(self) -> None:
        now = self.loop.time()
        expired = [limit for limit in self.pending if limit.when <= now]
        for limit in sorted(expired, key=lambda limit: limit.when):
            self.pending.discard(limit)
            limit.cancel_task()
        first = min((limit.when for limit in self.pending), default=None)
        self._handle = None if first is None else self.loop.call_at(first, self._cancel_expired)


class _Local(threading.local):
    timer: _SharedTimer | None = None
    """The timer of the event loop that runs in this thread, or ran in it last."""


_LOCAL = _Local()


def _timer_of_this_loop() -> _SharedTimer:
    loop, timer = asyncio.get_running_loop(), _LOCAL.timer
    if timer is None or timer.loop is not loop:
        timer = _LOCAL.timer = _SharedTimer(loop)
    return timer
