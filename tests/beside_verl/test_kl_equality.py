"""KL and the correction between sampler and learner beside VERL 0.9.1, to 1e-5."""

import pytest
import torch
from verl import DataProto
from verl.trainer.ppo import core_algos as theirs, rollout_corr_helper as their_correction
from verl.trainer.ppo.ray_trainer import apply_kl_penalty

from ragged_batch import Batch, assert_same, make_batch
from turnwise import algo as ours


@pytest.mark.parametrize("kind", ["k1", "k2", "k3", "abs", "k1+", "k2+", "k3+", "abs+"])
def test_kl_estimates(kind, batch):
    new = batch.new.clone()
    new[:, ::7] = -30.0  # beyond every clamp
    new.requires_grad_()
    mine = ours.estimate_kl(new, batch.old, kind)
    verls = theirs.kl_penalty(new, batch.old, kind)
    assert_same(mine, verls)
    assert_same(torch.autograd.grad(mine.sum(), new)[0], torch.autograd.grad(verls.sum(), new)[0])


def verl_kl_penalty(b: Batch, kind: str, coefficient: float) -> tuple[torch.Tensor, float]:
    data = DataProto.from_dict(
        {
            "response_mask": b.mask,
            "token_level_scores": b.rewards,
            "old_log_probs": b.new,
            "ref_log_prob": b.old,
        }
    )
    data, metrics = apply_kl_penalty(data, theirs.FixedKLController(coefficient), kind)
    return data.batch["token_level_rewards"], metrics["actor/reward_kl_penalty"]


@pytest.mark.parametrize("kind", ["k1", "k2", "k3", "abs"])
@pytest.mark.parametrize("turns", ["one", "several"])
@pytest.mark.parametrize("seed", [0, 1])
def test_kl_penalty_on_rewards(seed, turns, kind):
    b = make_batch(seed, turns, empty_row=False)
    rewards, kl = ours.apply_kl_penalty(b.rewards, b.new, b.old, b.mask, 0.05, kind)
    expected, expected_kl = verl_kl_penalty(b, kind, 0.05)
    assert_same(rewards, expected)
    assert_same(kl, expected_kl)


def test_kl_controllers():
    adaptive = ours.KLController(0.2, target_kl=0.1, adaptive=True, horizon=1000)
    fixed = ours.KLController(0.2)
    their_adaptive = theirs.AdaptiveKLController(0.2, target_kl=0.1, horizon=1000)
    their_fixed = theirs.FixedKLController(0.2)
    for measured in [0.0, 0.05, 0.099, 0.1, 0.11, 0.5, 3.0]:
        for controller in (adaptive, fixed, their_adaptive, their_fixed):
            controller.update(measured, 64)
        assert adaptive.value == pytest.approx(their_adaptive.value, abs=1e-12)
        assert fixed.value == their_fixed.value


@pytest.mark.parametrize("bounds", [2.0, 1.1, (0.8, 1.25)])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_importance_weights(level, bounds, batch):
    weights, metrics = ours.compute_importance_weights(
        batch.old, batch.new, batch.mask, level=level, bounds=bounds
    )
    expected, verls = their_correction.compute_rollout_correction_weights(
        batch.new - batch.old, batch.mask, level, as_threshold(bounds), False
    )
    assert_same(weights, expected)
    assert_same(metrics["is_mean"], verls["rollout_is_mean"])
    assert_same(metrics["is_ess"], verls["rollout_is_eff_sample_size"])
    if isinstance(bounds, tuple):
        assert_same(metrics["is_truncated"], verls["rollout_is_oob_ratio"])


def as_threshold(bounds: float | tuple[float, float]) -> str:
    return "_".join(map(str, bounds)) if isinstance(bounds, tuple) else str(bounds)
