"""Environments: what a user writes against, the built-in games, adapters, and the checker."""

from turnwise.config import EnvironmentConfig
from turnwise.env.base import BaseEnvironment
from turnwise.env.catalog import environment_factory, make_environment
from turnwise.env.driver import StepResult, reset_environment, step_environment
from turnwise.env.players import expert_player, play_episode, play_episode_async, random_player
from turnwise.types import EpisodeStatus, RolloutData, Trajectory

__all__ = [
    "BaseEnvironment",
    "EnvironmentConfig",
    "EpisodeStatus",
    "RolloutData",
    "StepResult",
    "Trajectory",
    "environment_factory",
    "expert_player",
    "make_environment",
    "play_episode",
    "play_episode_async",
    "random_player",
    "reset_environment",
    "step_environment",
]
