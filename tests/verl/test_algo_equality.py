"""turnwise.algo beside VERL 0.9.1: the same numbers from the same random input, to 1e-5.

`make test-verl` runs this, in an environment that has VERL. Inputs are ragged: one turn or several
with holes, and one row without any token. Where the two differ on purpose, a test below whose name
starts with `test_differs` pins what VERL gives and what turnwise gives:

- an episode alone in its group gets 0, not its raw score;
- masked tokens hold 0, and rewards on them count for nothing;
- equal scores give exactly 0, not a rounding error that the division by the spread blows up;
- rows without a token do not count in the mean of geo_mean or of the KL penalty;
- geo_mean multiplies a row's loss by the mean of its importance weights, not their geometric mean;
- an episode whose group members are all empty is not alone for the optimal token baseline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from verl import DataProto
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos as theirs
from verl.trainer.ppo import rollout_corr_helper as their_correction
from verl.trainer.ppo.ray_trainer import apply_kl_penalty as their_apply_kl_penalty
from verl.workers.config import ActorConfig, PolicyLossConfig

from turnwise import algo as ours
from turnwise.algo import BatchTotals

NUM_ROWS, LENGTH, GROUP_SIZE = 32, 200, 4
MODES = [
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
    "seq-mean-token-mean",
]


@dataclass(frozen=True)
class Batch:
    mask: torch.Tensor
    index: np.ndarray[Any, Any]
    rewards: torch.Tensor
    values: torch.Tensor
    old: torch.Tensor
    """Log-probs at rollout time."""
    new: torch.Tensor
    """Log-probs now."""
    advantages: torch.Tensor
    weights: torch.Tensor
    """Importance weights."""
    sum_pi_squared: torch.Tensor
    reward_parts: torch.Tensor


def make_batch(seed: int, turns: str = "several", empty_row: bool = True) -> Batch:
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=random)

    lengths = torch.randint(10, LENGTH + 1, (NUM_ROWS, 1), generator=random)
    mask = torch.arange(LENGTH) < lengths
    if turns == "several":
        # A turn or an observation lasts some 8 tokens; a row may begin with either.
        mask &= (uniform(NUM_ROWS, LENGTH) < 0.12).cumsum(1) % 2 == lengths % 2
        mask[:, 5] = True
    if empty_row:
        mask[3] = False
    shape = (NUM_ROWS, LENGTH)
    score = torch.randint(0, 5, (NUM_ROWS, 1), generator=random) / 4
    last = mask & (mask.flip(1).cumsum(1).flip(1) == 1)
    old = uniform(*shape).clamp(min=1e-4).log() * 0.7
    # Most tokens move a little, one in fifty so far that every bound is met.
    far = (uniform(*shape) < 0.02) * normal(*shape) * 2.0
    order = torch.randperm(NUM_ROWS, generator=random).numpy()
    return Batch(
        mask=mask.long(),
        index=np.array([f"task-{i // GROUP_SIZE}" for i in range(NUM_ROWS)])[order],
        rewards=last * score + mask * normal(*shape) * 0.01,
        values=0.5 + 0.3 * normal(*shape),
        old=old,
        new=(old + 0.1 * normal(*shape) + far).clamp(max=-1e-4),
        advantages=normal(*shape),
        weights=(0.2 * normal(*shape)).exp(),
        sum_pi_squared=uniform(*shape),
        reward_parts=normal(NUM_ROWS, 3),
    )


@pytest.fixture(params=[(seed, turns) for seed in (0, 1, 2) for turns in ("one", "several")])
def batch(request: pytest.FixtureRequest) -> Batch:
    return make_batch(*request.param)


def assert_same(mine: torch.Tensor, verls: torch.Tensor, mask: torch.Tensor | None = None) -> None:
    difference = (mine.detach().double() - verls.detach().double()).abs()
    if mask is not None:
        difference = difference[mask.bool()]
    assert float(difference.max()) < 1e-5


Estimator = Callable[[Batch], tuple[torch.Tensor, torch.Tensor]]


def _gae(gamma: float, lam: float) -> tuple[Estimator, Estimator]:
    return (
        lambda b: ours.compute_gae_advantage_return(b.rewards, b.values, b.mask, gamma, lam),
        lambda b: theirs.compute_gae_advantage_return(b.rewards, b.values, b.mask, gamma, lam),
    )


def _grpo(verls: Callable[..., Any], norm: bool) -> tuple[Estimator, Estimator]:
    return (
        lambda b: ours.compute_grpo_advantage(b.rewards, b.mask, b.index, norm_by_std=norm),
        lambda b: verls(b.rewards, b.mask, b.index, norm_adv_by_std_in_grpo=norm),
    )


def _passk(norm: bool) -> tuple[Estimator, Estimator]:
    config = AlgoConfig(norm_adv_by_std_in_grpo=norm)
    return (
        lambda b: ours.compute_grpo_passk_advantage(b.rewards, b.mask, b.index, norm_by_std=norm),
        lambda b: theirs.compute_grpo_passk_outcome_advantage(
            b.rewards, b.mask, b.index, config=config
        ),
    )


def _gdpo_of_parts(weights: list[float] | None, norm: bool) -> tuple[Estimator, Estimator]:
    keys = ["format", "accuracy", "brevity"]
    config = AlgoConfig(gdpo_reward_keys=keys, gdpo_reward_weights=weights)

    def verls(b: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        return theirs.compute_gdpo_outcome_advantage(
            b.rewards,
            b.mask,
            b.index,
            norm_adv_by_std_in_grpo=norm,
            config=config,
            non_tensor_batch=dict(zip(keys, b.reward_parts.T.numpy(), strict=True)),
            batch={"prompts": torch.zeros(NUM_ROWS, 7), "attention_mask": _attention(b, 7)},
        )

    def mine(b: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        return ours.compute_gdpo_advantage(
            b.rewards,
            b.mask,
            b.index,
            reward_parts=b.reward_parts,
            part_weights=weights,
            norm_by_std=norm,
        )

    return mine, verls


def _attention(b: Batch, prompt_length: int) -> torch.Tensor:
    up_to_last = (b.mask.flip(1).cumsum(1).flip(1) > 0).long()
    return torch.cat([torch.ones(NUM_ROWS, prompt_length, dtype=torch.long), up_to_last], 1)


def _reinforce_plus_plus(gamma: float) -> tuple[Estimator, Estimator]:
    return (
        lambda b: ours.compute_reinforce_plus_plus_advantage(b.rewards, b.mask, gamma),
        lambda b: theirs.compute_reinforce_plus_plus_outcome_advantage(
            b.rewards, b.mask, config=AlgoConfig(gamma=gamma)
        ),
    )


def _by_group(mine: Callable[..., Any], verls: Callable[..., Any]) -> tuple[Estimator, Estimator]:
    return lambda b: mine(b.rewards, b.mask, b.index), lambda b: verls(b.rewards, b.mask, b.index)


ESTIMATORS: dict[str, tuple[Estimator, Estimator]] = {
    "gae 1, 1": _gae(1.0, 1.0),
    "gae 1, 0.95": _gae(1.0, 0.95),
    "gae 0.99, 0.95": _gae(0.99, 0.95),
    "gae 0.9, 0.3": _gae(0.9, 0.3),
    "gae 0.99, 0.1": _gae(0.99, 0.1),
    "gae 0.99, 0": _gae(0.99, 0.0),
    "grpo": _grpo(theirs.compute_grpo_outcome_advantage, True),
    "grpo without std": _grpo(theirs.compute_grpo_outcome_advantage, False),
    "grpo vectorized": _grpo(theirs.compute_grpo_vectorized_outcome_advantage, True),
    "grpo vectorized without std": _grpo(theirs.compute_grpo_vectorized_outcome_advantage, False),
    "grpo_passk": _passk(True),
    "grpo_passk without std": _passk(False),
    "gdpo": _by_group(ours.compute_gdpo_advantage, theirs.compute_gdpo_outcome_advantage),
    "gdpo of parts": _gdpo_of_parts(None, True),
    "gdpo of weighted parts": _gdpo_of_parts([0.2, 1.0, 0.5], True),
    "gdpo of weighted parts without std": _gdpo_of_parts([0.2, 1.0, 0.5], False),
    "rloo": _by_group(ours.compute_rloo_advantage, theirs.compute_rloo_outcome_advantage),
    "rloo vectorized": _by_group(
        ours.compute_rloo_advantage, theirs.compute_rloo_vectorized_outcome_advantage
    ),
    "opo": _by_group(ours.compute_opo_advantage, theirs.compute_opo_outcome_advantage),
    "gpg": _by_group(ours.compute_gpg_advantage, theirs.compute_gpg_outcome_advantage),
    "gpg f_norm": (
        lambda b: ours.compute_gpg_advantage(b.rewards, b.mask, b.index, f_norm=0.7),
        lambda b: theirs.compute_gpg_outcome_advantage(b.rewards, b.mask, b.index, f_norm=0.7),
    ),
    "reinforce_plus_plus": _reinforce_plus_plus(1.0),
    "reinforce_plus_plus 0.97": _reinforce_plus_plus(0.97),
    "reinforce_plus_plus_baseline": _by_group(
        ours.compute_reinforce_plus_plus_baseline_advantage,
        theirs.compute_reinforce_plus_plus_baseline_outcome_advantage,
    ),
    "remax": (
        lambda b: ours.compute_remax_advantage(b.rewards, b.mask, b.reward_parts[:, 0]),
        lambda b: theirs.compute_remax_outcome_advantage(b.rewards, b.reward_parts[:, 0], b.mask),
    ),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_advantages(name: str, batch: Batch) -> None:
    mine, verls = ESTIMATORS[name]
    for got, expected in zip(mine(batch), verls(batch), strict=True):
        assert_same(got, expected, batch.mask)


@pytest.mark.parametrize("handle_zero_tail", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("turns", ["one", "several"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_optimal_token_baseline(
    seed: int, turns: str, weighted: bool, handle_zero_tail: bool
) -> None:
    b = make_batch(seed, turns)
    weights = b.weights if weighted else None
    multi_turn = theirs.compute_multi_turn_optimal_token_baseline_advantage
    one_turn = theirs.compute_optimal_token_baseline_advantage
    mine = ours.compute_optimal_token_baseline_advantage(
        b.rewards,
        b.mask,
        b.index,
        b.old,
        b.sum_pi_squared,
        importance_weights=weights,
        handle_zero_tail=handle_zero_tail,
    )
    for verls in [multi_turn, one_turn] if turns == "one" else [multi_turn]:
        expected = verls(
            b.rewards,
            b.mask,
            b.index,
            b.old,
            b.sum_pi_squared,
            rollout_is_weights=weights,
            handle_zero_tail=handle_zero_tail,
        )
        assert_same(mine[0], expected[0], b.mask)
        assert_same(mine[1], expected[1], b.mask)


@dataclass(frozen=True)
class LossPair:
    mine: Callable[..., tuple[torch.Tensor, dict[str, torch.Tensor]]]
    verls: Callable[..., tuple[torch.Tensor, dict[str, float]]]
    shared: dict[str, float]
    """Options that both call alike."""
    renamed: dict[str, tuple[str, float]]
    """Ours -> (VERL's field of policy_loss, value)."""
    metrics: dict[str, str]
    """Ours -> VERL's."""
    modes: list[str]
    """The aggregations that VERL's obeys."""


def _pair(
    mine: Callable[..., Any],
    verls: Callable[..., Any],
    metrics: str = "kl clip_fraction",
    modes: list[str] = MODES,
    renamed: dict[str, tuple[str, float]] | None = None,
    **shared: float,
) -> LossPair:
    names = {
        "kl": "actor/ppo_kl",
        "clip_fraction": "actor/pg_clipfrac",
        "clip_fraction_lower": "actor/pg_clipfrac_lower",
        "cov_fraction": "actor/pg_clipfrac",
    }
    return LossPair(
        mine, verls, shared, renamed or {}, {name: names[name] for name in metrics.split()}, modes
    )


PPO_METRICS = "kl clip_fraction clip_fraction_lower"
BY_SEQUENCE = ["seq-mean-token-mean"]
LOSSES = {
    "ppo": _pair(ours.compute_policy_loss, theirs.compute_policy_loss_vanilla, PPO_METRICS),
    "ppo asymmetric, tight dual clip": _pair(
        ours.compute_policy_loss,
        theirs.compute_policy_loss_vanilla,
        PPO_METRICS,
        clip_ratio_low=0.1,
        clip_ratio_high=0.28,
        clip_ratio_c=1.2,
    ),
    "dppo_tv": _pair(
        ours.compute_dppo_tv_loss,
        theirs.compute_policy_loss_dppo_tv,
        clip_ratio_low=0.05,
        clip_ratio_high=0.03,
        clip_ratio_c=4.0,
    ),
    "dppo_kl": _pair(
        ours.compute_dppo_kl_loss,
        theirs.compute_policy_loss_dppo_kl,
        clip_ratio_low=0.01,
        clip_ratio_high=0.005,
        clip_ratio_c=4.0,
    ),
    "gspo": _pair(
        ours.compute_gspo_loss,
        theirs.compute_policy_loss_gspo,
        clip_ratio_low=0.003,
        clip_ratio_high=0.004,
    ),
    "sapo": _pair(
        ours.compute_sapo_loss,
        theirs.compute_policy_loss_sapo,
        "kl",
        BY_SEQUENCE,
        tau_pos=1.0,
        tau_neg=1.3,
    ),
    "gpg": _pair(ours.compute_gpg_loss, theirs.compute_policy_loss_gpg, ""),
    "clip_cov": _pair(
        ours.compute_clip_cov_loss,
        theirs.compute_policy_loss_clip_cov,
        "kl cov_fraction",
        renamed={
            "clip_cov_ratio": ("clip_cov_ratio", 0.02),
            "clip_cov_lower": ("clip_cov_lb", 0.3),
            "clip_cov_upper": ("clip_cov_ub", 4.0),
        },
    ),
    # VERL's KL metric is of |log r| here.
    "kl_cov": _pair(
        ours.compute_kl_cov_loss,
        theirs.compute_policy_loss_kl_cov,
        "",
        renamed={"kl_cov_ratio": ("kl_cov_ratio", 0.02), "kl_cov_coef": ("ppo_kl_coef", 0.7)},
    ),
    "geo_mean": _pair(
        ours.compute_geo_mean_loss,
        theirs.compute_policy_loss_geo_mean,
        "kl",
        BY_SEQUENCE,
        clip_ratio_low=0.1,
        clip_ratio_high=0.2,
    ),
    "cispo": _pair(
        ours.compute_cispo_loss,
        theirs.compute_policy_loss_cispo,
        clip_ratio_low=0.1,
        clip_ratio_high=0.28,
    ),
    "reinforce": _pair(ours.compute_reinforce_loss, theirs.compute_policy_loss_reinforce, "kl"),
}


def actor_config(
    shared: dict[str, float] | None = None, policy_loss: dict[str, float] | None = None, **info: Any
) -> ActorConfig:
    return ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        use_dynamic_bsz=True,
        policy_loss=PolicyLossConfig(**(policy_loss or {})),
        global_batch_info=info,
        **(shared or {}),
    )


def run_pair(
    name: str, b: Batch, mode: str, weights: torch.Tensor | None = None, totals: bool = False
) -> tuple[tuple[torch.Tensor, torch.Tensor, Any], tuple[torch.Tensor, torch.Tensor, Any]]:
    """(loss, gradient, metrics) of both."""
    pair = LOSSES[name]
    info = {"batch_num_tokens": 9000, "global_batch_size": 70, "loss_scale_factor": 512}
    config = actor_config(pair.shared, dict(pair.renamed.values()), **(info if totals else {}))
    options: dict[str, Any] = {
        **pair.shared,
        **{mine: value for mine, (_, value) in pair.renamed.items()},
        "loss_agg_mode": mode,
        "importance_weights": weights,
        "totals": BatchTotals(num_tokens=9000, num_sequences=70, horizon=512) if totals else None,
    }
    # Clip-Cov draws its tokens at random.
    torch.manual_seed(7)
    new = b.new.clone().requires_grad_()
    loss, metrics = pair.mine(b.old, new, b.advantages, b.mask, **options)
    loss.backward()
    torch.manual_seed(7)
    their_new = b.new.clone().requires_grad_()
    their_loss, their_metrics = pair.verls(
        b.old, their_new, b.advantages, b.mask, mode, config, weights
    )
    their_loss.backward()
    assert new.grad is not None
    assert their_new.grad is not None
    return (loss, new.grad, metrics), (their_loss, their_new.grad, their_metrics)


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize(
    ("name", "mode"), [(name, mode) for name, pair in LOSSES.items() for mode in pair.modes]
)
def test_policy_loss(name: str, mode: str, weighted: bool) -> None:
    for seed, turns in [(0, "one"), (1, "several"), (2, "several")]:
        b = make_batch(seed, turns, empty_row=name != "geo_mean")
        if name == "geo_mean":
            # One advantage and one weight a sequence, which is what the method is for.
            first = {"advantages": b.advantages, "weights": b.weights}
            b = replace(b, **{k: x[:, :1].expand_as(x).contiguous() for k, x in first.items()})
        weights = b.weights if weighted else None
        (loss, grad, metrics), (their_loss, their_grad, theirs_) = run_pair(name, b, mode, weights)
        assert_same(loss, their_loss)
        assert_same(grad, their_grad)
        for mine, verls in LOSSES[name].metrics.items():
            assert_same(metrics[mine], torch.tensor(theirs_[verls]))
            assert mine == "kl" or theirs_[verls] > 0, "the input must reach every bound"


@pytest.mark.parametrize("mode", MODES)
def test_policy_loss_of_a_part_of_the_batch(mode: str) -> None:
    (loss, grad, _), (their_loss, their_grad, _) = run_pair("ppo", make_batch(4), mode, totals=True)
    assert_same(loss, their_loss)
    assert_same(grad, their_grad)


@pytest.mark.parametrize("totals", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_aggregation(mode: Any, totals: bool, batch: Batch) -> None:
    mine = BatchTotals(num_tokens=9000, num_sequences=70, horizon=512) if totals else None
    info = {"batch_num_tokens": 9000, "global_batch_size": 70, "loss_scale_factor": 512}
    got = ours.aggregate_loss(batch.advantages, batch.mask, mode, mine)
    expected = theirs.agg_loss(batch.advantages, batch.mask, mode, **(info if totals else {}))
    assert_same(got, expected)


@pytest.mark.parametrize("mode", MODES)
def test_value_loss(mode: Any, batch: Batch) -> None:
    values, their_values = (
        (batch.values + 0.3 * batch.advantages).requires_grad_() for _ in range(2)
    )
    returns = batch.values + batch.old
    loss, metrics = ours.compute_value_loss(
        values, returns, batch.values, batch.mask, 0.2, loss_agg_mode=mode
    )
    expected, clip_fraction = theirs.compute_value_loss(
        their_values, returns, batch.values, batch.mask, 0.2, mode
    )
    loss.backward()
    expected.backward()
    assert values.grad is not None
    assert their_values.grad is not None
    assert_same(loss, expected)
    assert_same(values.grad, their_values.grad)
    assert_same(metrics["value_clip_fraction"], clip_fraction)


@pytest.mark.parametrize("mode", MODES)
def test_entropy_loss(mode: Any, batch: Batch) -> None:
    logits = torch.randn(NUM_ROWS, LENGTH, 50, generator=torch.Generator().manual_seed(0)) * 3
    mine, verls = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    loss = ours.compute_entropy_loss(mine, batch.mask, loss_agg_mode=mode)
    expected = theirs.compute_entropy_loss(verls, batch.mask, mode)
    loss.backward()
    expected.backward()
    assert mine.grad is not None
    assert verls.grad is not None
    assert_same(loss, expected)
    assert_same(mine.grad, verls.grad)


@pytest.mark.parametrize("kind", [f"{k}{plus}" for k in ("k1", "k2", "k3", "abs") for plus in "_+"])
def test_kl_estimates(kind: str, batch: Batch) -> None:
    kind = kind.removesuffix("_")
    mine, verls = batch.new.clone().requires_grad_(), batch.new.clone().requires_grad_()
    got = ours.estimate_kl(mine, batch.old, kind)
    expected = theirs.kl_penalty(verls, batch.old, kind)
    got.sum().backward()
    expected.sum().backward()
    assert mine.grad is not None
    assert verls.grad is not None
    assert_same(got, expected)
    assert_same(mine.grad, verls.grad)


def verl_kl_penalty(b: Batch, kind: str, coefficient: float) -> tuple[torch.Tensor, float]:
    data = DataProto.from_dict(
        {
            "response_mask": b.mask,
            "token_level_scores": b.rewards,
            "old_log_probs": b.new,
            "ref_log_prob": b.old,
        }
    )
    data, metrics = their_apply_kl_penalty(data, theirs.FixedKLController(coefficient), kind)
    return data.batch["token_level_rewards"], metrics["actor/reward_kl_penalty"]


@pytest.mark.parametrize("kind", ["k1", "k2", "k3", "abs"])
@pytest.mark.parametrize("turns", ["one", "several"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_kl_penalty_on_rewards(seed: int, turns: str, kind: str) -> None:
    b = make_batch(seed, turns, empty_row=False)
    rewards, kl = ours.apply_kl_penalty(b.rewards, b.new, b.old, b.mask, 0.05, kind)
    expected, expected_kl = verl_kl_penalty(b, kind, 0.05)
    assert_same(rewards, expected)
    assert_same(kl, torch.tensor(expected_kl))


def test_kl_controllers() -> None:
    adaptive = ours.KLController(0.2, target_kl=0.1, adaptive=True, horizon=1000)
    fixed = ours.KLController(0.2)
    their_adaptive = theirs.AdaptiveKLController(0.2, target_kl=0.1, horizon=1000)
    their_fixed = theirs.FixedKLController(0.2)
    for measured in [0.0, 0.05, 0.099, 0.1, 0.11, 0.5, 3.0]:
        for controller in (adaptive, fixed, their_adaptive, their_fixed):
            controller.update(measured, 64)
        assert adaptive.value == pytest.approx(their_adaptive.value, abs=1e-12)
        assert fixed.value == their_fixed.value


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("bounds", [2.0, 1.1, (0.8, 1.25)])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_importance_weights(level: Any, bounds: Any, normalize: bool, batch: Batch) -> None:
    weights, metrics = ours.compute_importance_weights(
        batch.old, batch.new, batch.mask, level=level, bounds=bounds, normalize=normalize
    )
    expected, verls = their_correction.compute_rollout_correction_weights(
        batch.new - batch.old, batch.mask, level, as_threshold(bounds), normalize
    )
    assert_same(weights, expected)
    assert_same(metrics["is_mean"], torch.tensor(verls["rollout_is_mean"]))
    assert_same(metrics["is_ess"], torch.tensor(verls["rollout_is_eff_sample_size"]))
    if isinstance(bounds, tuple):
        assert_same(metrics["is_truncated"], torch.tensor(verls["rollout_is_oob_ratio"]))


def as_threshold(bounds: float | tuple[float, float]) -> str:
    return "_".join(map(str, bounds)) if isinstance(bounds, tuple) else str(bounds)


REJECTIONS: list[dict[str, Any]] = [
    {"token_k1": (0.7, 1.2)},
    {"token_k1": 1.3},
    {"token_k2": 0.02},
    {"token_k3": 0.02},
    {"seq_sum_k1": (0.2, 3.0)},
    {"seq_sum_k2": 3.0},
    {"seq_sum_k3": 3.0},
    {"seq_mean_k1": (0.99, 1.01)},
    {"seq_mean_k1": 1.01},
    {"seq_mean_k2": 0.04},
    {"seq_mean_k3": 0.04},
    {"seq_max_k2": 3.0},
    {"seq_max_k3": 3.0},
    {"token_k1": (0.7, 1.4), "seq_max_k3": 30.0},
    {"token_k2": 0.5, "seq_mean_k1": 1.02, "seq_sum_k3": 8.0},
]


@pytest.mark.parametrize("criteria", REJECTIONS, ids=lambda c: as_text(c))
def test_rejection_mask(criteria: dict[str, Any], batch: Batch) -> None:
    mask, metrics = ours.compute_rejection_mask(batch.old, batch.new, batch.mask, criteria)
    expected, verls = their_correction.compute_rollout_rejection_mask(
        batch.new - batch.old,
        batch.mask,
        ",".join(criteria),
        ",".join(as_threshold(bounds) for bounds in criteria.values()),
    )
    assert torch.equal(mask, expected.bool())
    for name in criteria:
        rejected = torch.tensor(verls[f"rollout_rs_{name}_masked_fraction"])
        assert_same(metrics[f"rejected_{name}"], rejected)
    assert_same(metrics["rejected"], torch.tensor(verls["rollout_rs_masked_fraction"]))
    assert 0 < metrics["rejected"] < 1, "the bounds must split this input"


def as_text(criteria: dict[str, Any]) -> str:
    return ",".join(f"{name}={as_threshold(bounds)}" for name, bounds in criteria.items())


def test_log_prob_gap(batch: Batch) -> None:
    gap = ours.measure_log_prob_gap(batch.old, batch.new, batch.mask)
    expected = their_correction.compute_offpolicy_metrics(batch.new, batch.old, batch.mask)
    assert_same(gap["gap_kl"], torch.tensor(expected["k3_kl"]))
