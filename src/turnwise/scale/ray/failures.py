"""Lost workers: which errors mean a loss, and how many losses a run survives."""

from __future__ import annotations

import logging
import math
import time

from turnwise.errors import TrainingStopped, TurnwiseError, import_extra

ray = import_extra("ray", "ray")

_LOG = logging.getLogger("turnwise")

SECONDS_TO_ANSWER = 300.0
"""A worker that does not answer for so long counts as lost; starting may take minutes."""
SECONDS_UNTIL_SILENT = 30.0
"""Others play the episodes of a worker that has not answered for so long."""
SECONDS_BETWEEN_CALLS = 10.0
"""The interval between two liveness checks of a worker."""


class WorkerLost(Exception):
    """A worker process is gone, or does not answer."""


class Failures:
    """Counts lost workers; the count restarts when work was completed in between."""

    def __init__(self, most: int) -> None:
        self._max_in_a_row = most
        self._num_in_a_row, self._last = 0, -math.inf
        self.num_lost = 0
        """Workers lost in the whole run."""

    def record(self, who: str, why: BaseException, requested: float = math.inf) -> None:
        """Count a lost worker; raises `TrainingStopped` after too many.

        `requested` is when it was requested. Those that were there before the last one was lost do
        not count: a machine that leaves takes several with it.
        """
        self.num_lost += 1
        reason = brief(why)
        _LOG.warning("%s was lost and is replaced: %s", who, reason)
        if requested < self._last:
            return
        self._last = time.monotonic()
        self._num_in_a_row += 1
        if self._num_in_a_row > self._max_in_a_row:
            raise TrainingStopped(
                f"{self._num_in_a_row} workers were lost in one step, and ray.max_failures is "
                f"{self._max_in_a_row}. The last one was {who}: {reason}"
            )

    def reset(self) -> None:
        """Restart the count: work was completed."""
        self._num_in_a_row, self._last = 0, -math.inf


def is_loss(error: BaseException) -> bool:
    """Return whether an error means that a worker is gone, not that its work failed."""
    kinds = ray.exceptions
    lost = (WorkerLost, kinds.RayActorError, kinds.WorkerCrashedError, kinds.ObjectLostError)
    return isinstance(error, lost)


def own_error(error: BaseException) -> BaseException:
    """Return the error that a worker raised, without Ray's wrapper."""
    cause = getattr(error, "cause", None)
    if not isinstance(cause, BaseException):
        return error
    if not isinstance(cause, TurnwiseError):
        cause.add_note(f"It was raised in a worker:\n{getattr(error, 'traceback_str', '')}")
    return cause


def brief(error: BaseException) -> str:
    """Return the first lines of an error: Ray's messages are long."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "; ".join(lines[:3])[:300] or type(error).__name__
