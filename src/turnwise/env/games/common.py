"""Shared by the built-in games: reading parameters, and the last command in a text."""

from __future__ import annotations

import re
from typing import Any

from turnwise.env.base import BaseEnvironment
from turnwise.errors import ConfigError, did_you_mean


def read_params(env: BaseEnvironment, **defaults: Any) -> dict[str, Any]:
    """Returns the game's parameters, with the types of the defaults; unknown names are errors."""
    game = type(env).__name__
    given = env.config.params
    for name in given:
        if name not in defaults:
            raise ConfigError(f"{game} has no parameter {name!r}. {did_you_mean(name, defaults)}")
    return {
        name: _typed(game, name, given.get(name, default), type(default))
        for name, default in defaults.items()
    }


def require(holds: bool, message: str) -> None:
    """Raises an error for an invalid parameter."""
    if not holds:
        raise ConfigError(message)


def last_match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """Returns the last match: the decision comes after the reasoning."""
    matches = list(pattern.finditer(text))
    return matches[-1] if matches else None


def _typed(game: str, name: str, value: Any, kind: type) -> Any:
    if kind is float and type(value) is int:
        return float(value)
    # bool is a subclass of int, but `size: true` is an error.
    if type(value) is not kind:
        raise ConfigError(
            f"{game} got {name}={value!r} of type {type(value).__name__}, expected {kind.__name__}"
        )
    return value
