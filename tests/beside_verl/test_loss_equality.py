"""Losses beside VERL 0.9.1: the same value, gradient and metrics, to 1e-5."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from verl.trainer.ppo import core_algos as theirs
from verl.workers.config import ActorConfig, PolicyLossConfig

from algo.cases import AGGREGATIONS
from ragged_batch import Batch, assert_same
from turnwise import algo as ours
from turnwise.algo import BatchTotals


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
    name: str,
    metrics: str = "kl clip_fraction",
    modes: list[str] = AGGREGATIONS,
    renamed: dict[str, tuple[str, float]] | None = None,
    **shared: float,
) -> tuple[str, LossPair]:
    """A loss of this name, which stands in the names of both functions."""
    names = {
        "kl": "actor/ppo_kl",
        "clip_fraction": "actor/pg_clipfrac",
        "clip_fraction_lower": "actor/pg_clipfrac_lower",
        "cov_fraction": "actor/pg_clipfrac",
    }
    mine = getattr(ours, f"compute_{name}_loss" if name != "vanilla" else "compute_policy_loss")
    verls = getattr(theirs, f"compute_policy_loss_{name}")
    told = {metric: names[metric] for metric in metrics.split()}
    return name, LossPair(mine, verls, shared, renamed or {}, told, modes)


BY_SEQUENCE = ["seq-mean-token-mean"]
CLIP_COV = {
    "clip_cov_ratio": ("clip_cov_ratio", 0.02),
    "clip_cov_lower": ("clip_cov_lb", 0.3),
    "clip_cov_upper": ("clip_cov_ub", 4.0),
}
KL_COV = {"kl_cov_ratio": ("kl_cov_ratio", 0.02), "kl_cov_coef": ("ppo_kl_coef", 0.7)}
TIGHT = {"clip_ratio_low": 0.1, "clip_ratio_high": 0.28, "clip_ratio_c": 1.2}
GEO_MEAN = {"clip_ratio_low": 0.1, "clip_ratio_high": 0.2}
PAIRS = [
    _pair("vanilla"),
    _pair("dppo_tv", clip_ratio_low=0.05, clip_ratio_high=0.03, clip_ratio_c=4.0),
    _pair("dppo_kl", clip_ratio_low=0.01, clip_ratio_high=0.005, clip_ratio_c=4.0),
    _pair("gspo", clip_ratio_low=0.003, clip_ratio_high=0.004),
    _pair("sapo", "kl", BY_SEQUENCE, tau_pos=1.0, tau_neg=1.3),
    _pair("gpg", ""),
    _pair("clip_cov", "kl cov_fraction", renamed=CLIP_COV),
    _pair("kl_cov", "", renamed=KL_COV),  # VERL's KL metric is of |log r| here
    _pair("geo_mean", "kl", BY_SEQUENCE, **GEO_MEAN),
    _pair("cispo", clip_ratio_low=0.1, clip_ratio_high=0.28),
    _pair("reinforce", "kl"),
]
LOSSES = dict(PAIRS)
LOSSES["asymmetric, tight dual clip"] = _pair(
    "vanilla", "kl clip_fraction clip_fraction_lower", **TIGHT
)[1]


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
def test_policy_loss(name, mode, weighted, batch):
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


@pytest.mark.parametrize("name", ["vanilla", "cispo", "dppo_tv", "dppo_kl"])
def test_policy_loss_far_from_the_old_policy(name, batch):
    # Every fifth token was all but impossible; every seventh has become so.
    old, new = batch.old.clone(), batch.new.clone()
    old[:, ::5] = -30.0
    new[:, ::7] = -30.0
    mine, verls = run_both(name, replace(batch, old=old, new=new), "token-mean")
    assert_same_loss(mine.loss, verls.loss)
    assert_same(mine.gradient, verls.gradient)


@pytest.mark.parametrize("is_part", [False, True], ids=["whole", "part"])
@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_value_loss(mode, is_part, batch):
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
