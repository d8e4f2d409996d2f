"""Workers that die: which errors mean it, and how often it may happen."""

from __future__ import annotations

import logging

from turnwise.errors import TrainingStopped, TurnwiseError, import_extra

ray = import_extra("ray", "ray")

_LOG = logging.getLogger("turnwise")

SECONDS_TO_ANSWER = 300.0
"""A worker that says nothing for so long counts as lost; it may be starting, so it is generous."""
SECONDS_BETWEEN_CALLS = 10.0
"""How often a worker that is at work is asked whether it is there."""


class WorkerLost(Exception):
    """A worker process is gone, or does not answer."""


class Failures:
    """Counts lost workers. What gets done between two of them wipes the slate clean."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._num_in_a_row = 0
        self.num_lost = 0
        """In the whole run."""

    def note(self, who: str, why: BaseException) -> None:
        """One more is lost; the last one is too many."""
        self.num_lost += 1
        self._num_in_a_row += 1
        reason = brief(why)
        _LOG.warning("%s was lost and is replaced: %s", who, reason)
        if self._num_in_a_row > self._most:
            raise TrainingStopped(
                f"{self._num_in_a_row} workers were lost in one step, and ray.max_failures is "
                f"{self._most}. The last one was {who}: {reason}"
            )

    def wipe(self) -> None:
        """Something was done to its end."""
        self._num_in_a_row = 0


def is_loss(error: BaseException) -> bool:
    """Whether an error says that a worker is gone, and not that its work failed."""
    kinds = ray.exceptions
    lost = (WorkerLost, kinds.RayActorError, kinds.WorkerCrashedError, kinds.ObjectLostError)
    return isinstance(error, lost)


def own_error(error: BaseException) -> BaseException:
    """The error that a worker raised, without Ray's wrapping."""
    cause = getattr(error, "cause", None)
    if not isinstance(cause, BaseException):
        return error
    if not isinstance(cause, TurnwiseError):
        cause.add_note(f"It was raised in a worker:\n{getattr(error, 'traceback_str', '')}")
    return cause


def brief(error: BaseException) -> str:
    """Its first lines: Ray explains at length."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "; ".join(lines[:3])[:300] or type(error).__name__
