"""What all policy losses share: their options, the ratio, and the clip range.

A policy loss takes log-probs [B, T] and gives (loss, metrics), the loss to be minimised:

    old_log_probs: [B, T], log-probs at rollout time.
    log_probs: [B, T], log-probs now; the gradient flows here and nowhere else.
    advantages, response_mask: [B, T].

Metrics are means over the policy's tokens: `kl` is the k1 estimate of KL(old ‖ now), `ratio` the
mean of r = π_now / π_old, `clip_fraction` the share of tokens whose gradient was cut.
"""

from __future__ import annotations

from typing import TypedDict

import torch

from turnwise.algo.losses.tiled import Kernel, Metrics, TokenLoss, tiled_loss
from turnwise.algo.masked import BatchTotals, LossAggregation
from turnwise.errors import ConfigError

# exp(±20) is as far as a ratio goes; beyond it one token would rule the sum.
MAX_LOG_RATIO = 20.0


class LossOptions(TypedDict, total=False):
    """Keyword arguments that every policy loss takes."""

    loss_agg_mode: LossAggregation
    """How token losses become one number; see `masked.row_weights`."""
    importance_weights: torch.Tensor | None
    """[B, T], learner against sampler (`correction.py`); multiplies the token losses."""
    totals: BatchTotals | None
    """Sizes of the whole batch, when this is one part of it."""


def policy_loss(
    token_loss: TokenLoss,
    old_log_probs: torch.Tensor,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    options: LossOptions,
    default_mode: LossAggregation = "token-mean",
    kernel: Kernel | None = None,
) -> tuple[torch.Tensor, Metrics]:
    """Aggregate `token_loss(log_probs, old_log_probs, advantages, mask)` as the options say."""
    return tiled_loss(
        token_loss,
        log_probs,
        (old_log_probs, advantages),
        response_mask,
        options.get("loss_agg_mode", default_mode),
        options.get("totals"),
        options.get("importance_weights"),
        kernel,
    )


def clip_range(both: float, low: float | None, high: float | None) -> tuple[float, float]:
    """(ε_low, ε_high); each defaults to `both`."""
    low = both if low is None else low
    high = both if high is None else high
    if low < 0 or high < 0:
        raise ConfigError(f"clip range got ({low}, {high}), expected numbers from 0 up")
    return low, high


def log_ratio(log_probs: torch.Tensor, old_log_probs: torch.Tensor) -> torch.Tensor:
    """log r, kept within ±20 so that r stays a usable number."""
    return (log_probs - old_log_probs).clamp_(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def is_above(x: torch.Tensor, y: torch.Tensor | float) -> torch.Tensor:
    """x > y as 0 and 1 of x's own type, which can be multiplied and averaged."""
    return torch.gt(x, y, out=torch.empty_like(x))
