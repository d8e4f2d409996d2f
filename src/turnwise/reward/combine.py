"""`WeightedReward`: a weighted sum of reward functions; reward functions from the settings."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from turnwise.config import RewardItem
from turnwise.errors import ConfigError, RewardError
from turnwise.reward.function import RewardFn, RewardFunction, single_episode_function
from turnwise.reward.result import Reward, add_rewards, count_turns
from turnwise.types import Trajectory
from turnwise.user_code import import_object

if TYPE_CHECKING:
    from turnwise.env.base import BaseEnvironment


class WeightedReward:
    """A reward function that is the weighted sum of others.

    >>> def short(trajectory): return float(trajectory.num_turns < 3)
    >>> reward_fn = WeightedReward({"steps": (None, 1.0), "short": (short, 0.5)})

    None stands for the environment's step rewards. The functions run at the same time, synchronous
    ones in threads: one that keeps state must be thread-safe, or run with max_concurrency=1. If one
    fails, the whole fails. If only some return one reward per turn, the others' rewards go on the
    last turn.
    """

    def __init__(self, parts: Mapping[str, tuple[RewardFn | None, float]]) -> None:
        if not isinstance(parts, Mapping) or not parts:
            raise ConfigError(
                "WeightedReward takes named parts, each a (function, weight): "
                "WeightedReward({'rule': (rule, 1.0), 'judge': (judge, 0.5)})"
            )
        self._parts: dict[str, tuple[RewardFunction, float]] = {}
        for name, part in parts.items():
            if not isinstance(part, tuple | list) or len(part) != 2:
                raise ConfigError(
                    f"reward part {name!r} must be a (function, weight), got {part!r}"
                )
            function, weight = part
            if not isinstance(weight, int | float) or not math.isfinite(weight):
                raise ConfigError(f"the weight of {name!r} must be a finite number, got {weight!r}")
            self._parts[name] = (single_episode_function(function), float(weight))

    @property
    def functions(self) -> dict[str, tuple[RewardFn, float]]:
        """The functions with their weights, by name."""
        return {name: (part.function, weight) for name, (part, weight) in self._parts.items()}

    async def __call__(
        self, trajectory: Trajectory, environment: BaseEnvironment | None = None
    ) -> Reward:
        outcomes = await asyncio.gather(
            *(part.score(trajectory, environment) for part, _ in self._parts.values()),
            return_exceptions=True,
        )
        named: dict[str, tuple[Reward, float]] = {}
        for (name, (_, weight)), outcome in zip(self._parts.items(), outcomes, strict=True):
            if isinstance(outcome, RewardError):
                raise RewardError(f"part {name!r}: {outcome}") from outcome
            if isinstance(outcome, BaseException):
                raise outcome
            named[name] = (outcome, weight)
        return add_rewards(named, count_turns(trajectory))


def reward_by_name(setting: str | Sequence[RewardItem] | None) -> RewardFn | None:
    """Returns the reward function of the setting `reward`; None takes the step rewards."""
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
        raise ConfigError(f"reward got {target!r}, which is not a function. Write path.py:function")
    return function
