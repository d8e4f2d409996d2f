"""Where turnwise.algo differs from VERL 0.9.1 on purpose: what VERL gives, and what we give.

- An episode alone in its group gets 0, not its raw score.
- Rewards on masked tokens count for nothing; VERL's outcome estimators add them to the score.
- Masked tokens hold 0; VERL leaves neighbours' advantages and returns there.
- Equal scores give exactly 0, not a rounding error that is divided by nearly nothing.
- Rows without a token do not count in the mean of geo_mean, nor in that of the KL penalty.
- The optimal token baseline counts an episode without tokens as a member of its group; VERL's
  multi-turn form does not, its other form does.
- The metric `clip_fraction` of geo_mean is the share of tokens whose gradient was cut; VERL counts
  those beyond a bound on the side where nothing is cut too. The `kl` of kl_cov is the mean of
  −log r, as of all our losses; VERL's is of |log r|.
- The metric `is_max` is the largest weight before truncation; VERL's token form, the one after.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from verl import DataProto
from verl.trainer.ppo import core_algos as theirs
from verl.trainer.ppo.ray_trainer import apply_kl_penalty
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights

from ragged_batch import make_batch
from turnwise import algo as ours

ACTOR: Any = SimpleNamespace(
    clip_ratio=0.2,
    clip_ratio_low=0.2,
    clip_ratio_high=0.2,
    global_batch_info={},
    policy_loss=SimpleNamespace(kl_cov_ratio=0.1, ppo_kl_coef=1.0),
)
"""What VERL's losses read of its ActorConfig."""


@pytest.mark.parametrize(
    ("mine", "verls", "verl_gives"),
    [
        (ours.compute_grpo_advantage, theirs.compute_grpo_outcome_advantage, 2.0),
        (ours.compute_grpo_advantage, theirs.compute_grpo_vectorized_outcome_advantage, 2.0),
        (ours.compute_rloo_advantage, theirs.compute_rloo_outcome_advantage, 2.0),
        (ours.compute_rloo_advantage, theirs.compute_rloo_vectorized_outcome_advantage, 0.0),
        (ours.compute_opo_advantage, theirs.compute_opo_outcome_advantage, 2.0),
        (ours.compute_gpg_advantage, theirs.compute_gpg_outcome_advantage, 2.0),
    ],
)
def test_differs_for_an_episode_alone_in_its_group(
    mine: Any, verls: Any, verl_gives: float
) -> None:
    batch = torch.tensor([[0.0, 2.0]]), torch.ones(1, 2, dtype=torch.long), np.array([0])
    assert verls(*batch)[0][0, 0].item() == pytest.approx(verl_gives, abs=1e-5)
    assert mine(*batch)[0].tolist() == [[0.0, 0.0]]


def test_differs_for_rewards_on_masked_tokens() -> None:
    rewards = torch.tensor([[1.0, 8.0], [0.0, 0.0]])
    mask, index = torch.tensor([[1, 0], [1, 1]]), np.array([0, 0])
    verls = theirs.compute_rloo_outcome_advantage(rewards, mask, index)[0]
    mine = ours.compute_rloo_advantage(rewards, mask, index)[0]
    assert verls.tolist() == [[9.0, 0.0], [-9.0, -9.0]]
    assert mine.tolist() == [[1.0, 0.0], [-1.0, -1.0]]


def test_differs_on_what_masked_tokens_hold() -> None:
    b = make_batch(0)
    masked = b.mask == 0
    verls = theirs.compute_gae_advantage_return(b.rewards, b.values, b.mask, 0.99, 0.95)
    mine = ours.compute_gae_advantage_return(b.rewards, b.values, b.mask, 0.99, 0.95)
    for result in verls:
        assert result[masked].abs().max() > 0.1
    for result in mine:
        assert not result[masked].any()


def test_differs_for_equal_scores() -> None:
    rewards, mask, index = torch.full((8, 1), 0.3), torch.ones(8, 1).long(), np.zeros(8, int)
    verls = theirs.compute_grpo_vectorized_outcome_advantage(rewards, mask, index)[0]
    mine = ours.compute_grpo_advantage(rewards, mask, index)[0]
    assert verls.abs().max() > 1e-2
    assert not mine.any()


def test_differs_for_empty_rows_in_geo_mean() -> None:
    log_probs, advantages = torch.full((2, 3), -1.0), torch.ones(2, 3)
    mask = torch.tensor([[1, 1, 1], [0, 0, 0]])
    verls, _ = theirs.compute_policy_loss_geo_mean(
        log_probs, log_probs, advantages, mask, config=ACTOR
    )
    mine, _ = ours.compute_geo_mean_loss(log_probs, log_probs, advantages, mask)
    assert verls.item() == pytest.approx(-0.5)
    assert mine.item() == pytest.approx(-1.0)


def test_differs_for_empty_rows_in_the_mean_kl() -> None:
    old, ref = torch.full((2, 3), -1.0), torch.full((2, 3), -2.0)
    scores, mask = torch.zeros(2, 3), torch.tensor([[1, 1, 0], [0, 0, 0]])
    data = DataProto.from_dict(
        {
            "response_mask": mask,
            "token_level_scores": scores,
            "old_log_probs": old,
            "ref_log_prob": ref,
        }
    )
    _, metrics = apply_kl_penalty(data, theirs.FixedKLController(0.1), "k1")
    _, mine = ours.apply_kl_penalty(scores, old, ref, mask, 0.1)
    assert metrics["actor/reward_kl_penalty"] == pytest.approx(0.5)
    assert mine.item() == pytest.approx(1.0)


def test_differs_for_a_group_of_one_and_an_empty_row_in_the_token_baseline() -> None:
    rewards, mask = torch.tensor([[0.0, 1.0], [0.0, 0.0]]), torch.tensor([[1, 1], [0, 0]])
    log_probs, squares = torch.full((2, 2), -1.0), torch.full((2, 2), 0.5)
    batch = (rewards, mask, np.array([0, 0]), log_probs, squares)
    verls, _ = theirs.compute_multi_turn_optimal_token_baseline_advantage(
        *batch, handle_zero_tail=False
    )
    verls_other, _ = theirs.compute_optimal_token_baseline_advantage(*batch, handle_zero_tail=False)
    mine, _ = ours.compute_optimal_token_baseline_advantage(*batch, handle_zero_tail=False)
    assert verls[0].tolist() == pytest.approx([1.0, 1.0])
    assert verls_other[0].tolist() == pytest.approx([0.0, 0.0], abs=1e-6)
    assert mine[0].tolist() == pytest.approx([0.0, 0.0], abs=1e-6)


def test_differs_in_the_metrics_of_geo_mean_and_kl_cov() -> None:
    old, mask = torch.full((1, 2), -1.0), torch.ones(1, 2)
    new, advantages = torch.tensor([[-0.5, -1.5]]), torch.ones(1, 2)
    batch = (old, new, advantages, mask)
    _, verls = theirs.compute_policy_loss_geo_mean(*batch, config=ACTOR)
    _, mine = ours.compute_geo_mean_loss(*batch, clip_ratio=0.2)
    assert verls["actor/pg_clipfrac"] == pytest.approx(1.0)
    assert mine["clip_fraction"].item() == pytest.approx(0.5)
    _, verls = theirs.compute_policy_loss_kl_cov(*batch, config=ACTOR)
    _, mine = ours.compute_kl_cov_loss(*batch, kl_cov_ratio=0.1)
    assert verls["actor/ppo_kl"] == pytest.approx(0.5)
    assert mine["kl"].item() == pytest.approx(0.0)


def test_differs_in_the_largest_weight() -> None:
    sampler, learner, mask = torch.zeros(1, 2), torch.tensor([[0.0, 2.0]]), torch.ones(1, 2)
    _, verls = compute_rollout_correction_weights(learner - sampler, mask, "token", 2.0)
    _, mine = ours.compute_importance_weights(sampler, learner, mask, bounds=2.0)
    assert verls["rollout_is_max"] == pytest.approx(2.0)
    assert mine["is_max"].item() == pytest.approx(np.exp(2.0))
