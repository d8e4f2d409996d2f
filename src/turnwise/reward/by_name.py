"""Reward functions from a configuration file: one by its name, or several with weights."""

from __future__ import annotations

from collections.abc import Sequence

from turnwise.config import RewardItem
from turnwise.errors import ConfigError
from turnwise.reward.combine import WeightedReward
from turnwise.reward.function import RewardFn
from turnwise.user_code import import_object


def reward_by_name(setting: str | Sequence[RewardItem] | None) -> RewardFn | None:
    """Return the reward function that a setting names; None: the sum of the step rewards."""
    if setting is None or isinstance(setting, str):
        return None if setting is None else _imported(setting)
    if not setting:
        raise ConfigError("reward got an empty list, expected {function, weight} in it, or null")
    parts: dict[str, tuple[RewardFn | None, float]] = {}
    for item in setting:
        function = None if item.function is None else _imported(item.function)
        name = item.name or (item.function or ":steps").rpartition(":")[2]
        if name in parts:
            raise ConfigError(f"reward names {name!r} twice. Add their weights.")
        parts[name] = (function, item.weight)
    return WeightedReward(parts)


def _imported(target: str) -> RewardFn:
    function: RewardFn = import_object(target, option="--reward or the setting reward")
    if not callable(function):
        raise ConfigError(f"reward got {target!r}, which is no function")
    return function
