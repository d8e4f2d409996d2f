"""Gymnasium environments in words; needs the `gym` extra."""

from turnwise.env.adapters.gymnasium.environment import GymnasiumEnvironment

__all__ = ["GymnasiumEnvironment"]
