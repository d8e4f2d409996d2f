"""The time of one episode: what is left of it, what each component took, and which one failed."""

from __future__ import annotations

import time
from types import TracebackType

from turnwise.episode.watchdog import ENGINE, Waits
from turnwise.types import EpisodeStatus

# For each component: the status of an episode in which it fails, and its name in reports.
_COMPONENTS = {
    "engine": (EpisodeStatus.ENGINE_ERROR, ENGINE),
    "environment": (EpisodeStatus.ENVIRONMENT_ERROR, "an environment"),
    "tools": (EpisodeStatus.TOOL_ERROR, "a tool"),
    "reward": (EpisodeStatus.REWARD_ERROR, "a reward"),
    "agent": (EpisodeStatus.AGENT_ERROR, "an agent"),
}


class EpisodeTimer:
    """Times one episode: `with timer.component("engine"): ...` around each call of a component.

    `waits` counts what the episodes of this event loop wait for.
    """

    def __init__(self, waits: Waits | None = None, max_seconds: float | None = None) -> None:
        self.component_seconds: dict[str, float] = {}
        """Since the episode began."""
        self.turn_seconds: dict[str, float] = {}
        """Since the turn began."""
        self.failed_component: str | None = None
        self._waits = waits or Waits()
        self._started = time.monotonic()
        self._end = None if max_seconds is None else self._clock() + max_seconds

    def component(self, name: str) -> _ComponentCall:
        """Returns a context in which time, waiting and failures are those of this component."""
        return _ComponentCall(self, name)

    @property
    def error_status(self) -> EpisodeStatus | None:
        """The status for the component that failed; None if no component failed."""
        return None if self.failed_component is None else _COMPONENTS[self.failed_component][0]

    def _clock(self) -> float:
        # An episode cannot go on while the engine is paused for an update.
        return time.monotonic() - self._waits.silence.paused_seconds

    @property
    def seconds(self) -> float:
        """Seconds since the episode began."""
        return time.monotonic() - self._started

    @property
    def is_over(self) -> bool:
        # Timers fire a little early: what this limit has cut must find that the time is over.
        return self._end is not None and self._clock() >= self._end - 0.02

    def within(self, timeout: float | None) -> float | None:
        """Returns the timeout of a call, shortened to what is left of the episode's time."""
        if self._end is None:
            return timeout
        left = max(self._end - self._clock(), 0.0)
        return left if timeout is None else min(left, timeout)


class _ComponentCall:
    __slots__ = ("_name", "_started", "_timer")

    def __init__(self, timer: EpisodeTimer, name: str) -> None:
        self._timer = timer
        self._name = name

    def __enter__(self) -> None:
        self._started = self._timer._waits.begin(_COMPONENTS[self._name][1])

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        timer, name = self._timer, self._name
        took = timer._waits.end(_COMPONENTS[name][1]) - self._started
        timer.component_seconds[name] = timer.component_seconds.get(name, 0.0) + took
        timer.turn_seconds[name] = timer.turn_seconds.get(name, 0.0) + took
        if kind is not None and timer.failed_component is None:
            timer.failed_component = name
