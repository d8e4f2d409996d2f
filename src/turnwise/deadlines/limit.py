"""`Deadline`: what a task waits for ends after a number of seconds."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Self

from turnwise.deadlines.abandon import mark_called_off, unmark_called_off

_CANCEL_AGAIN_SECONDS = 10.0
"""For cleaning up after a cancellation; code that still waits then is cancelled once more."""


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
        if not self.expired:
            self.expired = True
            mark_called_off(self._task)
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
        unmark_called_off(self._task)
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
