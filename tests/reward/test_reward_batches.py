"""Reward functions of whole batches: how they are told apart, and rewards of raw responses."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from turnwise import (
    ConfigError,
    CustomGameEnvironment,
    EnvironmentRewardWrapper,
    RewardBatch,
    RewardManager,
    Trajectory,
    WeightedReward,
    compute_reward,
    score_trajectories,
)
from turnwise.models.tiny import make_tiny_tokenizer
from turnwise.reward import batch_type
from turnwise.reward.batches import Columns


class Scores:
    def __call__(self, data: DataProto) -> list[float]:  # noqa: F821 - VERL's, and it is not here
        return [1.0] * len(data.batch)


def of_ours(data: RewardBatch) -> list[float]:
    return [1.0] * len(data)


def named_in_full(data: verl.DataProto, scale: float = 1.0) -> list[float]:  # noqa: F821
    return [scale]


def of_one(trajectory: Trajectory) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (Scores(), "DataProto"),
        (named_in_full, "verl.DataProto"),
        (of_ours, RewardBatch),
        (partial(of_ours), RewardBatch),
    ],
)
def test_a_function_of_batches_is_known_by_its_annotation(function, kind):
    assert batch_type(function) == kind


@pytest.mark.parametrize(
    "function", [None, of_one, Scores, lambda data: 1.0, print, RewardManager(None), "text"]
)
def test_others_score_one_episode(function):
    assert batch_type(function) is None


def test_a_batch_counts_and_gives_its_rows():
    data = RewardBatch(
        Columns({"responses": torch.tensor([[1, 2], [3, 4]]), "state": ["door", "wall"]}),
        {"uid": np.array(["a", "b"], dtype=object)},
    )
    assert len(data) == len(data.batch) == 2
    assert data[-1].batch["responses"].tolist() == [3, 4]
    assert [row.non_tensor_batch["uid"] for row in data] == ["a", "b"]
    assert data.batch.get("nothing") is None
    assert list(data.batch.keys()) == ["responses", "state"]
    with pytest.raises(IndexError):
        data[2]


def test_where_one_episode_is_scored_a_function_of_batches_is_refused():
    for score in (
        lambda: compute_reward(Trajectory(), None, of_ours),
        lambda: score_trajectories([Trajectory()], of_ours),
        lambda: WeightedReward({"all": (of_ours, 1.0)}),
    ):
        with pytest.raises(ConfigError, match="scores whole batches"):
            score()


# ---- responses without their episodes ----

GAME = CustomGameEnvironment({"max_steps": 5})
WORDS = ["move north", "complete quest", "mumble"]
EARNED = [0.1, 10.0, -0.1]
# 1 step of 5: 0.4 for speed; 5 for success, -0.5 for what is no action.
MANAGED = [0.5, 15.4, -0.2]


def batch_of(responses, **columns):
    return SimpleNamespace(batch={"responses": responses, **columns})


def as_ids(words, pad=0):
    tokenizer = make_tiny_tokenizer()
    rows = [tokenizer.encode(text) for text in words]
    longest = max(map(len, rows))
    padded = torch.tensor([row + [pad] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    return tokenizer, padded, mask


def test_responses_as_texts():
    data = batch_of(WORDS)
    assert EnvironmentRewardWrapper(GAME)(data).tolist() == pytest.approx(EARNED)
    doubled = EnvironmentRewardWrapper(GAME, lambda trajectory: 2 * trajectory.total_reward)
    assert doubled(data).tolist() == pytest.approx([2 * x for x in EARNED])
    rewards = RewardManager(GAME)(data)
    assert (rewards.dtype, rewards.shape) == (torch.float32, (3,))
    assert rewards.tolist() == pytest.approx(MANAGED)
    assert GAME.step_count == 0  # each response had an environment of its own


def test_responses_as_token_ids():
    # What the padding says is not part of a response, if the mask of prompt and response says so.
    tokenizer, ids, mask = as_ids(WORDS, pad=make_tiny_tokenizer().encode("x")[0])
    data = batch_of(ids, attention_mask=torch.cat([torch.ones(3, 4), mask], 1))
    seen = []

    def reward(trajectory):
        seen.extend(trajectory.actions)
        return trajectory.total_reward

    rewards = EnvironmentRewardWrapper(GAME, reward, tokenizer)(data)
    assert (rewards.tolist(), seen) == (pytest.approx(EARNED), WORDS)
    assert RewardManager(GAME, tokenizer=tokenizer)(data).tolist() == pytest.approx(MANAGED)
    for score in (EnvironmentRewardWrapper(GAME), RewardManager(GAME)):
        with pytest.raises(ConfigError, match="Pass tokenizer="):
            score(data)


def test_episodes_that_a_batch_carries_are_scored_as_they_are():
    played = Trajectory(actions=["a", "b"], rewards=[1.0, 2.0], infos=[{}, {"success": True}])
    columns = {"responses": None, "rm_scores": torch.tensor([[1.0, 2.0]])}
    data = SimpleNamespace(batch=columns, non_tensor_batch={"trajectory": [played]})
    assert RewardManager(GAME)(data).tolist() == pytest.approx([3.0 + 5.0 + 0.3])
    wrapper = EnvironmentRewardWrapper(GAME, lambda t: 7.0)
    assert wrapper(data).tolist() == [7.0]
    # What the agent loop of VERL has scored has its reward already.
    assert wrapper(SimpleNamespace(batch=columns)).tolist() == [3.0]
