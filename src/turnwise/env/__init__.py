"""Environments: the base class, the built-in games, adapters, and the checker."""

import importlib
from typing import TYPE_CHECKING, Any

from turnwise.config import EnvironmentConfig
from turnwise.env.base import BaseEnvironment
from turnwise.env.catalog import ADAPTERS, environment_factory, make_environment
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
from turnwise.env.step_tool import EnvironmentStepTool
from turnwise.types import EpisodeStatus, RolloutData, StepResult, Trajectory

if TYPE_CHECKING:
    from turnwise.env.adapters.gymnasium import GymnasiumEnvironment
    from turnwise.env.adapters.openenv import OpenEnvEnvironment
    from turnwise.env.adapters.reasoning_gym import ReasoningGymEnvironment
    from turnwise.env.adapters.textarena import TextArenaEnvironment


def __getattr__(name: str) -> Any:
    for target in ADAPTERS.values():  # each needs a package that may not be installed
        module, _, class_name = target.partition(":")
        if class_name == name:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "BaseEnvironment",
    "CheckReport",
    "CustomGameEnvironment",
    "EnvironmentConfig",
    "EnvironmentStepTool",
    "EpisodeStatus",
    "Finding",
    "GridWorldEnvironment",
    "GuessNumberEnvironment",
    "GymnasiumEnvironment",
    "OpenEnvEnvironment",
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
