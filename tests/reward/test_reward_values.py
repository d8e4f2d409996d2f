"""What a reward function may return, and what becomes of it."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

from turnwise.errors import RewardError
from turnwise.reward import Reward, compute_reward
from turnwise.types import EpisodeStatus, Trajectory

THREE_TURNS = Trajectory(actions=["a", "b", "c"], rewards=[0.5, 0.0, 1.0])


def reward_of(value, trajectory=THREE_TURNS):
    return compute_reward(trajectory, reward_fn=lambda t: value)


@pytest.mark.parametrize(
    ("value", "total"),
    [
        (2, 2.0),
        (True, 1.0),
        (-1.5, -1.5),
        (np.float32(0.5), 0.5),
        (np.array(0.25), 0.25),
        (torch.tensor(0.5, dtype=torch.bfloat16, requires_grad=True), 0.5),
        (Fraction(1, 4), 0.25),
        (Decimal("1.5"), 1.5),
    ],
)
def test_a_number_is_the_reward_of_the_whole_episode(value, total):
    reward = reward_of(value)
    assert reward == Reward(total)
    assert type(reward.total) is float
    assert reward.by_turn(3) == [0.0, 0.0, total]


@pytest.mark.parametrize(
    "value",
    [
        [0.5, 0, True],
        (0.5, 0.0, 1.0),
        np.array([0.5, 0.0, 1.0]),
        torch.tensor([0.5, 0.0, 1.0]),
        [torch.tensor(0.5), np.float64(0.0), 1.0],
    ],
)
def test_a_sequence_is_one_reward_a_turn(value):
    reward = reward_of(value)
    assert reward.per_turn == (0.5, 0.0, 1.0)
    assert reward.total == 1.5
    assert reward.by_turn(3) == [0.5, 0.0, 1.0]


def test_a_dict_names_parts_that_add_up():
    reward = reward_of({"form": 0.5, "answer": np.float64(2.0)})
    assert reward == Reward(2.5, parts={"form": 0.5, "answer": 2.0})
    assert reward.by_turn(3) == [0.0, 0.0, 2.5]


def test_a_reward_may_be_returned_ready_made():
    made = Reward(1.0, parts={"rule": 1.0})
    assert reward_of(made) is made


def test_without_a_function_the_step_rewards_stay_on_their_turns():
    reward = compute_reward(THREE_TURNS)
    assert reward.total == THREE_TURNS.total_reward
    assert reward.by_turn(3) == [0.5, 0.0, 1.0]


def test_a_mapping_is_read_as_a_trajectory():
    data = {"actions": ["a", "b"], "rewards": [1, 2], "num_turns": 2, "total_reward": 3}
    assert compute_reward(data).by_turn(2) == [1.0, 2.0]
    assert compute_reward(data, reward_fn=lambda t: t.num_turns).total == 2.0


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        -math.inf,
        torch.tensor(math.nan),
        [0.0, math.nan, 0.0],
        {"rule": math.inf, "judge": -math.inf},
        10**400,
        [3e38, 3e38, 0.0],
    ],
)
def test_what_is_not_finite_is_an_error_and_never_a_zero(value):
    with pytest.raises(RewardError, match=r"<lambda>.*expected a finite number"):
        reward_of(value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "returned None, expected a float"),
        ("1.0", r"returned str.* Convert it with float"),
        ({}, "returned an empty dict"),
        ({"rule": None}, "part 'rule': returned None"),
        ({"rule": 1.0, "far": math.inf}, "part 'far': the reward is inf"),
        ([0.0, 1.0, "x"], "returned str"),
        (np.zeros((3, 1)), "returned list"),
    ],
)
def test_what_is_no_reward_is_an_error_with_the_cure(value, message):
    with pytest.raises(RewardError, match=f"(?s)reward function '<lambda>': {message}"):
        reward_of(value)


@pytest.mark.parametrize("value", [[], [1.0], [1.0] * 4, np.ones(2), torch.ones(1)])
def test_a_wrong_number_of_rewards_is_an_error(value):
    with pytest.raises(RewardError, match=rf"got {len(value)} rewards for an episode of 3 turns"):
        reward_of(value)


def test_step_rewards_that_are_missing_or_not_finite_are_errors():
    with pytest.raises(RewardError, match="got 1 rewards for an episode of 2 turns"):
        compute_reward(Trajectory(actions=["a", "b"], rewards=[1.0]))
    with pytest.raises(RewardError, match=r"step_rewards.*finite"):
        compute_reward(Trajectory(actions=["a"], rewards=[math.nan]))


@pytest.mark.parametrize("status", [s for s in EpisodeStatus if s.is_error])
def test_a_failed_episode_is_not_scored(status):
    failed = Trajectory(actions=["a"], rewards=[1.0], status=status, error="the door fell off")
    with pytest.raises(RewardError, match=f"{status.value}: the door fell off"):
        compute_reward(failed, reward_fn=lambda t: 1.0)


@pytest.mark.parametrize("status", [s for s in EpisodeStatus if s.is_truncated])
def test_a_truncated_episode_is_scored(status):
    cut = Trajectory(actions=["a"], rewards=[1.0], status=status)
    assert compute_reward(cut).total == 1.0
