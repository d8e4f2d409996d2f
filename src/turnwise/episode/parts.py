"""Which part of an episode is at work: for the clock, the report, and the blame."""

from __future__ import annotations

from types import TracebackType

from turnwise.episode.waiting import Waits
from turnwise.types import EpisodeStatus

# Whose failure it is when something breaks in a part, and what others wait for meanwhile.
_BLAME = {
    "engine": EpisodeStatus.ENGINE_ERROR,
    "environment": EpisodeStatus.ENVIRONMENT_ERROR,
    "tools": EpisodeStatus.TOOL_ERROR,
    "reward": EpisodeStatus.REWARD_ERROR,
}
_WAITING = {
    "engine": "the engine",
    "environment": "an environment",
    "tools": "a tool",
    "reward": "a reward",
}


class Parts:
    """The parts of one episode: what each took, and in which one it failed."""

    def __init__(self, waits: Waits) -> None:
        self.seconds: dict[str, float] = {}
        """Since the episode began."""
        self.turn: dict[str, float] = {}
        """Since the turn began."""
        self.failed_in: str | None = None
        self.waits = waits

    def begin_turn(self) -> dict[str, float]:
        self.turn = {}
        return self.turn

    def part(self, name: str) -> _Part:
        """`with parts.part("engine"): ...`"""
        return _Part(self, name)

    @property
    def blame(self) -> EpisodeStatus | None:
        """The status of an episode that failed where this one did; None: it is nobody's failure."""
        return None if self.failed_in is None else _BLAME[self.failed_in]


class _Part:
    __slots__ = ("_name", "_parts", "_started")

    def __init__(self, parts: Parts, name: str) -> None:
        self._parts = parts
        self._name = name

    def __enter__(self) -> None:
        self._started = self._parts.waits.begin(_WAITING[self._name])

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        parts, name = self._parts, self._name
        took = parts.waits.end(_WAITING[name]) - self._started
        parts.seconds[name] = parts.seconds.get(name, 0.0) + took
        parts.turn[name] = parts.turn.get(name, 0.0) + took
        if kind is not None and parts.failed_in is None:
            parts.failed_in = name
