"""Environments: the base class, the built-in games, adapters, and the checker."""

import importlib
from typing import TYPE_CHECKING, Any

from turnwise.config import EnvironmentConfig
from turnwise.env.base import BaseEnvironment
from turnwise.env.catalog import environment_factory, make_environment
from turnwise.env.checker import CheckReport, Finding, check_env
from turnwise.env.driver import reset_environment, step_environment
from turnwise.env.games import (
    CustomGameEnvironment,
    GridWorldEnvironment,
    GuessNumberEnvironment,
    SimpleGameEnvironment,
)
from turnwise.env.players import expert_player, play_episode, play_episode_async, random_player
from turnwise.env.prompts import PromptEnvironment
from turnwise.types import EpisodeStatus, RolloutData, StepResult, Trajectory

if TYPE_CHECKING:
    from turnwise.env.adapters.gymnasium import GymnasiumEnvironment
    from turnwise.env.adapters.reasoning_gym import ReasoningGymEnvironment
    from turnwise.env.adapters.textarena import TextArenaEnvironment

# Imported when first used: each needs a package that may not be installed.
_ADAPTERS = {
    "GymnasiumEnvironment": "turnwise.env.adapters.gymnasium",
    "ReasoningGymEnvironment": "turnwise.env.adapters.reasoning_gym",
    "TextArenaEnvironment": "turnwise.env.adapters.textarena",
}


def __getattr__(name: str) -> Any:
    if name in _ADAPTERS:
        return getattr(importlib.import_module(_ADAPTERS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "BaseEnvironment",
    "CheckReport",
    "CustomGameEnvironment",
    "EnvironmentConfig",
    "EpisodeStatus",
    "Finding",
    "GridWorldEnvironment",
    "GuessNumberEnvironment",
    "GymnasiumEnvironment",
    "PromptEnvironment",
    "ReasoningGymEnvironment",
    "RolloutData",
    "SimpleGameEnvironment",
    "StepResult",
    "TextArenaEnvironment",
    "Trajectory",
    "check_env",
    "environment_factory",
    "expert_player",
    "make_environment",
    "play_episode",
    "play_episode_async",
    "random_player",
    "reset_environment",
    "step_environment",
]
