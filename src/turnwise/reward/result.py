"""The result of scoring an episode: a finite reward, or the reason why there is none."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, SupportsFloat, TypeAlias

from turnwise.errors import RewardError
from turnwise.types import EpisodeStatus, Trajectory

FLOAT32_MAX = 3.4028234663852886e38


@dataclass(frozen=True)
class Reward:
    """The reward of one episode.

    >>> Reward(1.0).by_turn(3)
    [0.0, 0.0, 1.0]
    >>> Reward(1.5, per_turn=(0.5, 1.0)).by_turn(2)
    [0.5, 1.0]
    """

    total: float
    """The whole episode's reward."""
    per_turn: tuple[float, ...] | None = None
    """One reward per turn, adding up to `total`; None for one reward of the whole episode."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Named parts that add up to `total`, for the metrics."""

    def __post_init__(self) -> None:
        _check_finite([self.total], "the reward is")
        _check_finite(self.per_turn or (), "the reward of a turn is")
        _check_finite(self.parts.values(), "a part of the reward is")

    def by_turn(self, num_turns: int) -> list[float]:
        """Returns one reward per turn; the episode's own is on the last turn.

        An episode without turns gives an empty list.
        """
        if self.per_turn is None:
            return [0.0] * (num_turns - 1) + [self.total] if num_turns else []
        if len(self.per_turn) != num_turns:
            got = f"{len(self.per_turn)} rewards for an episode of {num_turns} turns"
            raise RewardError(f"got {got}. Return one float per turn, or one for the episode.")
        return list(self.per_turn)


@dataclass(frozen=True)
class RewardFailure:
    """Why an episode has no reward. It is never counted as a zero.

    >>> RewardFailure(EpisodeStatus.REWARD_ERROR, "reward function 'judge': ...").status.is_error
    True
    """

    status: EpisodeStatus
    """`REWARD_ERROR`, or the status with which the episode itself had already failed."""
    error: str
    """What went wrong."""


RewardOutcome: TypeAlias = Reward | RewardFailure


def count_turns(trajectory: Trajectory) -> int:
    """Returns the number of turns; hand-written trajectories may have rewards without actions."""
    return trajectory.num_turns or len(trajectory.rewards)


def read_reward(value: object, num_turns: int) -> Reward:
    """Reads what a reward function returned; raises `RewardError` if it is no reward.

    A number is the episode's reward, a sequence has one number per turn, a mapping has named parts
    that are either. Arrays and tensors count as their numbers.
    """
    if isinstance(value, Reward):
        value.by_turn(num_turns)
        return value
    if isinstance(value, Mapping):
        if not value:
            raise RewardError("returned an empty dict, expected named floats such as {'rule': 1.0}")
        named = {}
        for name, part in value.items():
            try:
                named[str(name)] = (read_reward(part, num_turns), 1.0)
            except RewardError as error:
                raise RewardError(f"part {str(name)!r}: {error}") from None
        return add_rewards(named, num_turns)
    value = as_plain(value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        turns = tuple(_number(turn) for turn in value)
        reward = Reward(sum(turns), per_turn=turns)
        reward.by_turn(num_turns)
        return reward
    return Reward(_number(value))


def add_rewards(named: Mapping[str, tuple[Reward, float]], num_turns: int) -> Reward:
    """Returns the weighted sum of named rewards; parts of a part are named `name/part`."""
    parts: dict[str, float] = {}
    for name, (reward, weight) in named.items():
        leaves = {f"{name}/{key}": part for key, part in reward.parts.items()}
        for key, part in (leaves or {name: reward.total}).items():
            parts[key] = weight * part
    total = sum(weight * reward.total for reward, weight in named.values())
    if all(reward.per_turn is None for reward, _ in named.values()):
        return Reward(total, parts=parts)
    per_turn = [0.0] * num_turns
    for reward, weight in named.values():
        for turn, earned in enumerate(reward.by_turn(num_turns)):
            per_turn[turn] += weight * earned
    return Reward(total, tuple(per_turn), parts)


def as_plain(value: Any) -> Any:
    """Returns arrays and tensors as numbers and lists, and everything else as it is."""
    # Arrays and tensors of every library have tolist(); naming their types would import torch.
    return value.tolist() if hasattr(value, "tolist") else value


def _number(value: object) -> float:
    value = as_plain(value)
    # The common types first: checking for a protocol is slow.
    if isinstance(value, int | float | SupportsFloat):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    got = None if value is None else type(value).__name__
    expected = "a float, one float per turn, or a dict of named floats"
    fix = "Does every path end in a return?" if value is None else "Convert it with float(...)."
    raise RewardError(f"returned {got}, expected {expected}. {fix}")


def _check_finite(values: Iterable[float], what: str) -> None:
    for value in values:
        if not abs(value) <= FLOAT32_MAX:
            expected = "a finite number in float32. Raise an error if there is no reward."
            raise RewardError(f"{what} {value:g}, expected {expected}")
