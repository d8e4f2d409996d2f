"""Gymnasium environments as text environments; needs the `gym` extra."""

from turnwise.env.adapters.gymnasium.environment import GymnasiumEnvironment

__all__ = ["GymnasiumEnvironment"]
