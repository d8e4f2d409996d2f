"""Where the sampler's log-probs are not the learner's: measure, or reweight.

Engines round differently (bf16, other kernels), filter (top-p), or run on older weights. With
ρ = π_learner / π_sampler per token, a loss that is multiplied by ρ is unbiased again.
"""

from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch

from turnwise.algo.losses.policy import MAX_LOG_RATIO
from turnwise.algo.masked import TensorMetrics, as_mask, keep, masked_mean, wide
from turnwise.errors import ConfigError

Bounds: TypeAlias = float | Sequence[float]
"""An upper bound, or (lower, upper)."""


@torch.no_grad()
def measure_log_prob_gap(
    sampler_log_probs: torch.Tensor, log_probs: torch.Tensor, response_mask: torch.Tensor
) -> TensorMetrics:
    """Return the mean and max of |Δ log π|, and KL(sampler ‖ learner)."""
    mask = as_mask(response_mask)
    gap = keep(wide(log_probs) - sampler_log_probs, mask)
    return {
        "gap_mean": masked_mean(gap.abs(), mask),
        "gap_max": gap.abs().amax() if gap.numel() else gap.sum(),
        # k3, which is never negative, from samples of the sampler.
        "gap_kl": masked_mean(gap.clamp(max=MAX_LOG_RATIO).expm1() - gap, mask),
    }


@torch.no_grad()
def compute_importance_weights(
    sampler_log_probs: torch.Tensor,
    log_probs: torch.Tensor,
    response_mask: torch.Tensor,
    *,
    level: Literal["token", "sequence"] = "token",
    bounds: Bounds = 2.0,
) -> tuple[torch.Tensor, TensorMetrics]:
    """Truncated importance sampling (Espeholt et al., https://arxiv.org/abs/1802.01561).

        token:     w_t = min(ρ_t, C)             little variance, some bias
        sequence:  w_t = min(Π_s ρ_s, C)         no bias but for C, much variance

    Args:
        sampler_log_probs, log_probs: [B, T], at sampling and from the learner.
        bounds: C; or (lower, upper): weights outside become 0 (IcePop,
            https://arxiv.org/abs/2510.18855).

    Returns:
        weights [B, T], 0 on masked tokens, and metrics: `is_mean`, `is_max`, `is_truncated`
        (share of tokens beyond a bound) and `is_ess` (effective share of the samples).
    """
    mask = as_mask(response_mask)
    log_ratio = keep(wide(log_probs) - sampler_log_probs, mask)
    if level == "sequence":
        log_ratio = log_ratio.sum(1, keepdim=True).expand_as(log_ratio)
    elif level != "token":
        raise ConfigError(f"level got {level!r}, expected 'token' or 'sequence'")
    raw = keep(log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp(), mask)
    lower, upper = checked_bounds(bounds)
    outside = raw > upper
    if lower is None:
        weights = raw.clamp(max=upper)
    else:
        outside |= raw < lower
        weights = torch.where(outside, 0.0, raw)
    metrics = {
        "is_mean": masked_mean(weights, mask),
        "is_max": raw.amax() if raw.numel() else raw.sum(),
        "is_truncated": masked_mean(outside.to(raw.dtype), mask),
        # (Σ w)² / (n Σ w²): 1 for equal weights, near 0 if a few samples dominate
        "is_ess": weights.sum().square()
        / (mask.sum().clamp(min=1) * weights.square().sum()).clamp(min=1e-30),
    }
    return weights, metrics


def checked_bounds(bounds: Bounds) -> tuple[float | None, float]:
    """Return (lower, upper), where lower may be None; raise for invalid bounds."""
    pair = (None, bounds) if isinstance(bounds, int | float) else tuple(bounds)
    if len(pair) != 2 or pair[1] <= 0 or (pair[0] is not None and not 0 < pair[0] <= pair[1]):
        raise ConfigError(
            f"bounds got {bounds!r}, expected a number > 0, or (lower, upper): 0 < lower ≤ upper"
        )
    return pair
