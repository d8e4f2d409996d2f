"""Losses beside VERL 0.9.1: the same value, gradient and metrics, to 1e-5."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from verl.trainer.ppo import core_algos as theirs
from verl.workers.config import ActorConfig, PolicyLossConfig

from ragged_batch import Batch, assert_same
from turnwise import algo as ours
from turnwise.algo import BatchTotals

MODES = [
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
    "seq-mean-token-mean",
]


@dataclass(frozen=True)
class Run:
    loss: torch.Tensor
    gradient: torch.Tensor
    metrics: dict[str, Any]


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


BY_SEQUENCE = ["seq-mean-token-mean"]
LOSSES = {
    "ppo": _pair(ours.compute_policy_loss, theirs.compute_policy_loss_vanilla),
    "ppo asymmetric, tight dual clip": _pair(
        ours.compute_policy_loss,
        theirs.compute_policy_loss_vanilla,
        "kl clip_fraction clip_fraction_lower",
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


# The sizes of a whole batch of which the test's is a part, in the words of each.
THEIR_TOTALS = {"batch_num_tokens": 9000, "global_batch_size": 70, "loss_scale_factor": 512}
OUR_TOTALS = BatchTotals(num_tokens=9000, num_sequences=70, horizon=512)


def run_both(
    name: str, b: Batch, mode: str, weights: torch.Tensor | None = None
) -> tuple[Run, Run]:
    """A policy loss, forward and backward: ours, VERL's."""
    pair = LOSSES[name]
    options: dict[str, Any] = {
        **pair.shared,
        **{mine: value for mine, (_, value) in pair.renamed.items()},
        "loss_agg_mode": mode,
        "importance_weights": weights,
    }
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        use_dynamic_bsz=True,
        policy_loss=PolicyLossConfig(**dict(pair.renamed.values())),
        **pair.shared,
    )

    def run(call: Callable[[torch.Tensor], tuple[torch.Tensor, Any]]) -> Run:
        new = b.new.clone().requires_grad_()
        torch.manual_seed(7)  # Clip-Cov draws its tokens
        loss, metrics = call(new)
        (gradient,) = torch.autograd.grad(loss, new)
        return Run(loss, gradient, metrics)

    return (
        run(lambda new: pair.mine(b.old, new, b.advantages, b.mask, **options)),
        run(lambda new: pair.verls(b.old, new, b.advantages, b.mask, mode, config, weights)),
    )


def assert_same_loss(mine: torch.Tensor, verls: torch.Tensor) -> None:
    """To 1e-5, and of a loss above 1 to that share: float32 sums of 100 have no such digit."""
    size = verls.detach().abs().clamp(min=1.0)
    assert_same(mine / size, verls / size)


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize(
    ("name", "mode"), [(name, mode) for name, pair in LOSSES.items() for mode in pair.modes]
)
def test_policy_loss(name: str, mode: str, weighted: bool, batch: Batch) -> None:
    if name == "geo_mean":
        batch = without_empty_rows(batch)
    mine, verls = run_both(name, batch, mode, batch.weights if weighted else None)
    assert_same_loss(mine.loss, verls.loss)
    assert_same(mine.gradient, verls.gradient)
    for metric, verls_metric in LOSSES[name].metrics.items():
        assert_same(mine.metrics[metric], verls.metrics[verls_metric])
        assert metric == "kl" or mine.metrics[metric] > 0, "this input does not reach the bound"


def without_empty_rows(b: Batch) -> Batch:
    mask = b.mask.clone()
    mask[mask.sum(1) == 0] = 1
    return replace(b, mask=mask)


@pytest.mark.parametrize("name", ["ppo", "cispo", "dppo_tv", "dppo_kl"])
def test_policy_loss_far_from_the_old_policy(name: str, batch: Batch) -> None:
    # Every fifth token was all but impossible; every seventh has become so.
    old, new = batch.old.clone(), batch.new.clone()
    old[:, ::5] = -30.0
    new[:, ::7] = -30.0
    mine, verls = run_both(name, replace(batch, old=old, new=new), "token-mean")
    assert_same_loss(mine.loss, verls.loss)
    assert_same(mine.gradient, verls.gradient)


@pytest.mark.parametrize("is_part", [False, True], ids=["whole", "part"])
@pytest.mark.parametrize("mode", MODES)
def test_value_loss(mode: Any, is_part: bool, batch: Batch) -> None:
    values = (batch.values + 0.1 * batch.advantages).requires_grad_()
    returns = batch.values + 0.2 * batch.old
    mine, metrics = ours.compute_value_loss(
        values,
        returns,
        batch.values,
        batch.mask,
        0.1,
        loss_agg_mode=mode,
        totals=OUR_TOTALS if is_part else None,
    )
    verls, clip_fraction = theirs.compute_value_loss(
        values, returns, batch.values, batch.mask, 0.1, mode, **(THEIR_TOTALS if is_part else {})
    )
    assert_same_loss(mine, verls)
    assert_same(torch.autograd.grad(mine, values)[0], torch.autograd.grad(verls, values)[0])
    assert_same(metrics["value_clip_fraction"], clip_fraction)
    assert clip_fraction > 0
