"""`RewardManager`: the four parts, by hand, in every form in which a batch may come."""

from types import SimpleNamespace

import pytest
import torch

from turnwise import RewardManager, RewardWeights
from turnwise.env import BaseEnvironment
from turnwise.errors import ConfigError
from turnwise.reward import Reward, compute_reward, score_trajectories
from turnwise.types import RolloutData, Trajectory


class Quest(BaseEnvironment):
    max_steps = 10

    def reset(self):
        return "A quest."

    def step(self, action):
        return "Done.", 10.0, True, {"success": True}

    def get_state_description(self):
        return "A quest."


MANAGER = RewardManager(Quest())

# As a hand-written harness makes it: 0.1 + (-0.1) + 10 for the steps, 5 for success,
# -0.5 for the invalid action, 0.1 for each of the 7 steps left.
WON = {
    "prompts": ["Play."],
    "states": ["start"],
    "actions": ["move north", "dance", "complete quest"],
    "observations": ["", "", ""],
    "rewards": [0.1, -0.1, 10.0],
    "dones": [False, False, True],
    "infos": [{}, {"invalid_action": True}, {"success": True}],
    "total_reward": 10.0,
    "num_turns": 3,
}
LOST = {**WON, "rewards": [0.1, -0.1, -0.1], "infos": [{}, *[{"invalid_action": True}] * 2]}
TOTALS = [10.0 + 5.0 - 0.5 + 0.7, -0.1 - 1.0 + 0.7]


def test_the_four_parts_by_hand():
    reward = MANAGER.score(WON)
    assert reward.parts == pytest.approx(
        {"step": 10.0, "success": 5.0, "invalid_action": -0.5, "efficiency": 0.7}
    )
    assert reward.total == pytest.approx(15.2)
    assert reward.by_turn(3) == pytest.approx([0.1, -0.6, 15.7])


def test_turns_are_counted_by_the_rewards_where_actions_are_missing():
    short = {"rewards": [1.0, 2.0], "infos": [{}, {"success": True}], "num_turns": 2}
    assert MANAGER.compute_trajectory_reward(short) == pytest.approx(3.0 + 5.0 + 0.8)


@pytest.mark.parametrize(
    "batch",
    [
        [WON, LOST],
        (Trajectory.of(WON), LOST),
        RolloutData([Trajectory.of(WON), Trajectory.of(LOST)]),
        SimpleNamespace(trajectories=[WON, LOST]),
    ],
)
def test_a_batch_gives_a_float32_tensor(batch):
    rewards = MANAGER(batch)
    assert rewards.dtype is torch.float32
    assert rewards.tolist() == pytest.approx(TOTALS)
    assert torch.equal(rewards, MANAGER.compute_batch_rewards([WON, LOST]))


def test_a_manager_is_itself_a_reward_function():
    assert compute_reward(WON, reward_fn=MANAGER) == MANAGER.score(WON)
    outcomes = score_trajectories([WON, LOST], MANAGER)
    assert all(isinstance(outcome, Reward) for outcome in outcomes)
    assert [outcome.total for outcome in outcomes] == pytest.approx(TOTALS)


def test_the_efficiency_bonus_needs_a_limit_of_steps():
    unlimited = SimpleNamespace()
    with pytest.raises(ConfigError, match="max_steps"):
        RewardManager(unlimited).score(WON)
    manager = RewardManager(unlimited, RewardWeights(efficiency=0.0))
    assert manager.compute_trajectory_reward(WON) == pytest.approx(14.5)
