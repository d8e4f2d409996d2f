"""How far an episode may go, and how long each part of it may keep the others waiting."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass

from turnwise.errors import ConfigError


@dataclass(frozen=True)
class EpisodeLimits:
    """Limits of one episode; None: no limit.

    >>> EpisodeLimits(max_turns=5).max_tokens_per_turn
    512
    """

    max_turns: int | None = 64
    """Turns of all agents together. The environment's `max_steps` counts besides."""
    max_tokens_per_turn: int | None = 512
    """A turn that is cut by it is an action like any other; the episode goes on."""
    max_tokens: int | None = None
    """Tokens of an agent's stream, prompt and observations included. The model's context is
    always a limit."""
    max_tool_calls: int | None = 100
    """Calls beyond it are not carried out: the model is told so once, and may still answer; a
    later turn with another call ends the episode."""
    max_seconds: float | None = 1800.0
    """From the making of the environment to the last step."""
    max_observation: int | None = 50_000
    """Characters of an observation that the model is given; the rest is cut, and it says so."""
    reset_timeout: float | None = 120.0
    """Seconds for making and resetting the environment."""
    step_timeout: float | None = 60.0
    tool_timeout: float | None = 600.0
    """Over the tools' own limits, which are shorter and told to the model."""
    generation_timeout: float | None = 600.0
    reward_timeout: float | None = 60.0
    close_timeout: float | None = 10.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is None:
                continue
            least = 0 if field.name == "max_tool_calls" else 1 if "int" in str(field.type) else 0.0
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not least <= value:
                raise ConfigError(
                    f"{field.name} got {value!r}, expected a number from {least} up, "
                    "or None for no limit"
                )


class Clock:
    """How much of an episode's time is left."""

    def __init__(self, max_seconds: float | None) -> None:
        self.started = time.monotonic()
        self._end = None if max_seconds is None else self.started + max_seconds

    @property
    def seconds(self) -> float:
        """Since the episode began."""
        return time.monotonic() - self.started

    @property
    def is_over(self) -> bool:
        # Timers fire a little early: what was cut by this clock must find that it is over.
        return self._end is not None and time.monotonic() >= self._end - 0.02

    def within(self, timeout: float | None) -> float | None:
        """What a part with this limit may take, so that the episode keeps its own."""
        if self._end is None:
            return timeout
        left = max(self._end - time.monotonic(), 0.0)
        return left if timeout is None else min(left, timeout)
