"""Combining reward functions by weights."""

import asyncio

import pytest
from hypothesis import given, settings, strategies as st

from turnwise.errors import RewardError
from turnwise.reward import LLMJudge, Reward, WeightedReward, compute_reward
from turnwise.types import Trajectory

EPISODE = Trajectory(actions=["a", "b"], rewards=[1.0, 2.0])
numbers = st.floats(-100, 100)


def constant(value):
    def reward(trajectory):
        return value

    return reward


def constant_async(value):
    async def reward(trajectory, environment):
        await asyncio.sleep(0)
        return value

    return reward


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(numbers, numbers, st.booleans()), min_size=1, max_size=4))
def test_the_combination_is_the_weighted_sum(parts):
    named = {
        f"part{i}": ((constant_async if slow else constant)(value), weight)
        for i, (value, weight, slow) in enumerate(parts)
    }
    reward = compute_reward(EPISODE, reward_fn=WeightedReward(named))
    assert reward.total == pytest.approx(sum(v * w for v, w, _ in parts), abs=1e-9)
    assert reward.parts == {f"part{i}": v * w for i, (v, w, _) in enumerate(parts)}
    assert reward.by_turn(2) == [0.0, reward.total]


def test_rule_and_judge_and_step_rewards_together():
    judge = LLMJudge(lambda prompt: "Fair.\nScore: 5")
    reward_fn = WeightedReward(
        {"steps": (None, 1.0), "rule": (lambda t: t.num_turns, 0.5), "judge": (judge, 4.0)}
    )
    reward = compute_reward(EPISODE, reward_fn=reward_fn)
    assert reward == Reward(6.0, (1.0, 5.0), {"steps": 3.0, "rule": 1.0, "judge": 2.0})


def test_parts_of_parts_keep_both_names():
    inner = WeightedReward({"a": (constant(1.0), 2.0), "b": (constant({"x": 1.0, "y": 3.0}), 1.0)})
    reward = compute_reward(EPISODE, reward_fn=WeightedReward({"inner": (inner, 10.0)}))
    assert reward.total == 60.0
    assert reward.parts == {"inner/a": 20.0, "inner/b/x": 10.0, "inner/b/y": 30.0}


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (constant(float("nan")), "part 'judge': reward function 'reward': the reward is nan"),
        (lambda t: 1 / 0, "part 'judge': reward function '<lambda>': raised ZeroDivisionError"),
    ],
)
@pytest.mark.parametrize("weight", [1.0, 0.0])
def test_a_part_that_fails_fails_the_whole_by_name(broken, words, weight):
    reward_fn = WeightedReward({"rule": (constant(1.0), 1.0), "judge": (broken, weight)})
    with pytest.raises(RewardError, match=words):
        compute_reward(EPISODE, reward_fn=reward_fn)
