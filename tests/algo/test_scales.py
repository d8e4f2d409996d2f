"""Rewards of any size: equal ones, huge ones, tiny ones, and none at all."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

import turnwise
from turnwise import algo
from turnwise.algo import ADVANTAGE_ESTIMATORS, POLICY_LOSSES
from turnwise.algo.choose import compute_advantages

# What these give is a comparison: of equal scores nothing is left.
COMPARING = sorted(set(ADVANTAGE_ESTIMATORS) - {"remax", "optimal_token_baseline"})
WHITENING = ["gae", "turn_gae", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "gdpo"]
NORMALISING = [*WHITENING, "grpo", "grpo_passk", "turn_grpo", "gigpo"]
LARGEST = 2.0**80
SIZES = st.floats(-LARGEST, LARGEST, width=32) | st.floats(-1e3, 1e3, width=32)


def make_batch(scores: torch.Tensor, length: int = 1, turns: bool = False) -> dict[str, Any]:
    """Episodes of these scores [B], each on its last token; all in one group."""
    num_rows = len(scores)
    rewards = torch.zeros(num_rows, length, dtype=scores.dtype)
    if length:
        rewards[:, -1] = scores
    mask = torch.ones(num_rows, length, dtype=torch.bool)
    if turns and length > 2:
        mask[:, 1] = False
    return {
        "token_level_rewards": rewards,
        "response_mask": mask,
        "values": torch.zeros_like(rewards),
        "old_log_probs": torch.full_like(rewards, -1.0),
        "sum_pi_squared": torch.full_like(rewards, 0.5),
        "bootstrap_values": torch.zeros_like(scores),
        "reward_baselines": torch.zeros_like(scores),
        "index": [0] * num_rows,
        "anchor_states": [["start"] * (length + 1)] * num_rows,
        "gamma": 1.0,
        "lam": 0.95,
    }


def advantages_of(name: str, batch: dict[str, Any], **options: Any) -> torch.Tensor:
    if name == "turn_grpo":
        return algo.compute_turn_grpo_advantage(
            batch["token_level_rewards"], batch["response_mask"], batch["index"], norm_by_std=True
        )[0]
    return compute_advantages(name, {**batch, **options})[0]


@pytest.mark.parametrize("name", COMPARING)
@given(score=SIZES, num_rows=st.integers(2, 40), turns=st.booleans())
@settings(deadline=None, max_examples=15)
def test_equal_scores_of_any_size_teach_nothing(name, score, num_rows, turns):
    # Lambda 1: else GAE tells tokens apart by how far the reward is.
    for dtype in (torch.float32, torch.float64):
        batch = make_batch(torch.full((num_rows,), score, dtype=dtype), 3, turns)
        assert torch.all(advantages_of(name, batch, lam=1.0) == 0)


@pytest.mark.parametrize("name", NORMALISING)
@given(
    score=st.floats(2.0**-10, LARGEST, width=32), up=st.lists(st.booleans(), min_size=3, max_size=9)
)
@settings(deadline=None, max_examples=15)
def test_scores_that_differ_by_rounding_alone_count_as_equal(name, score, up):
    """0.1 + 0.2 and 0.3 are the same reward; dividing by their spread would tell them apart."""
    scores = torch.full((len(up),), score)
    infinity = torch.full_like(scores, float("inf"))
    scores = torch.where(torch.tensor(up), torch.nextafter(scores, infinity), scores)
    assert torch.all(advantages_of(name, make_batch(scores)) == 0)


@pytest.mark.parametrize("name", sorted(ADVANTAGE_ESTIMATORS))
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_reward_that_is_not_finite_is_not_hidden(name, bad):
    """The update skips such a batch and counts it; it must not look like one of equal rewards."""
    scores = torch.tensor([1.0, bad, 2.0, 3.0])
    advantages = advantages_of(name, make_batch(scores, 3))
    assert not bool(advantages.isfinite().all())


def test_a_perfect_critic_leaves_nothing_to_whiten():
    """Advantages are then the rounding of returns and values, at whatever size these are."""
    random = torch.Generator().manual_seed(0)
    rewards = 1000 * torch.rand(16, 50, generator=random)
    mask = torch.ones(16, 50, dtype=torch.bool)
    for gamma, lam in ((1.0, 1.0), (0.99, 0.95), (1.0, 0.5), (0.99, 0.05)):
        values = algo.discounted_suffix_sum(rewards.double(), mask, gamma).float()
        advantages, _ = algo.compute_gae_advantage_return(rewards, values, mask, gamma, lam)
        assert torch.all(advantages == 0)


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0)])
@pytest.mark.parametrize("with_turn_ids", [False, True])
def test_an_empty_batch_gives_an_empty_result(shape, with_turn_ids):
    batch = make_batch(torch.zeros(shape[0]), shape[1])
    if with_turn_ids:
        batch["turn_ids"] = torch.zeros(shape, dtype=torch.long)
    for name in ADVANTAGE_ESTIMATORS:
        advantages, returns = compute_advantages(name, batch)
        assert advantages.shape == returns.shape == shape
    x, mask = batch["values"], batch["response_mask"]
    for loss in POLICY_LOSSES.values():
        variable = x.clone().requires_grad_()
        value, _ = loss(x, variable, x, mask)
        value.backward()
        assert float(value.detach()) == 0
        assert variable.grad is not None
    assert turnwise.estimate_advantages(x, x, x, 0.9, 0.9)[0].shape == shape
    assert float(algo.compute_value_loss(x, x, x, mask)[0]) == 0
    assert algo.compute_importance_weights(x, x, mask)[0].shape == shape
