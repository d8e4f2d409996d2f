"""What all policy losses share: their inputs and options, the ratio, and the clip range.

A policy loss takes log-probs [B, T] and gives (loss, metrics), the loss to be minimised:

    old_log_probs: [B, T], log-probs at rollout time.
    log_probs: [B, T], log-probs now; the gradient flows here and nowhere else.
    advantages, response_mask: [B, T].

Metrics are means over the policy's tokens: `kl` is the k1 estimate of KL(old ‖ now), `ratio` the
mean of r = π_now / π_old, `clip_fraction` the share of tokens whose gradient was cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias, TypedDict

import torch

from turnwise.algo.masked import (
    BatchTotals,
    LossAggregation,
    aggregate_loss,
    as_mask,
    masked_mean,
    wide,
)
from turnwise.algo.types import TensorMetrics, TokenLoss, TokenTerms
from turnwise.errors import ConfigError

# Ratios are bounded by exp(±20): beyond that a single token would dominate the sum.
MAX_LOG_RATIO = 20.0
_NONE = torch.empty(0)


class LossOptions(TypedDict, total=False):
    """Keyword arguments that every policy loss takes."""

    loss_agg_mode: LossAggregation
    """How token losses become one number; see `masked.row_weights`."""
    importance_weights: torch.Tensor | None
    """[B, T], learner against sampler (`correction.py`); multiplies the token losses."""
    totals: BatchTotals | None
    """Sizes of the whole batch, when the loss is computed on one part of it."""


class PolicyTokens(NamedTuple):
    """What a policy loss is computed from, for some rows; all [B, T], with 0 on masked tokens."""

    log_probs: torch.Tensor
    """Log-probs now; the gradient flows here and nowhere else."""
    old_log_probs: torch.Tensor
    advantages: torch.Tensor
    mask: torch.Tensor
    """0 and 1 as floats."""
    selected: torch.Tensor = _NONE
    """0 and 1 as floats: the tokens that a loss with a `TokenSelection` has picked."""

    @property
    def log_ratio(self) -> torch.Tensor:
        """log r, with r = π_now / π_old."""
        return self.log_probs - self.old_log_probs

    @property
    def bounded_log_ratio(self) -> torch.Tensor:
        """log r within ±20, so that r stays a usable number."""
        return self.log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


PolicyTokenLoss: TypeAlias = Callable[[PolicyTokens], TokenTerms]


def policy_loss(
    token_loss: PolicyTokenLoss,
    options: LossOptions,
    old_log_probs: torch.Tensor,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    selected: torch.Tensor | None = None,
) -> tuple[torch.Tensor, TensorMetrics]:
    """Evaluate a token loss on a batch [B, T] and aggregate it as the options say."""

    def on_columns(*columns: torch.Tensor) -> TokenTerms:
        log_probs, old_log_probs, advantages, *chosen, mask = columns
        return token_loss(PolicyTokens(log_probs, old_log_probs, advantages, mask, *chosen))

    return batch_loss(
        on_columns,
        log_probs,
        [old_log_probs, advantages, *([] if selected is None else [selected])],
        response_mask,
        options.get("loss_agg_mode", "token-mean"),
        options.get("totals"),
        options.get("importance_weights"),
    )


def batch_loss(
    token_loss: TokenLoss,
    variable: torch.Tensor,
    constants: Sequence[torch.Tensor],
    mask: torch.Tensor,
    mode: LossAggregation,
    totals: BatchTotals | None = None,
    importance_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, TensorMetrics]:
    """Evaluate a token loss on a batch and aggregate it: (loss, mean of each metric).

    The gradient flows to `variable` [B, T] alone; the values of masked tokens have no effect.
    """
    mask = as_mask(mask)
    variable = wide(variable)
    fixed = [x.detach().to(variable.dtype) for x in constants]
    inputs = [torch.where(mask, x, 0.0) for x in (variable, *fixed)]
    losses, metrics = token_loss(*inputs, mask.to(variable.dtype))
    if importance_weights is not None:
        losses = losses * torch.where(mask, importance_weights.detach(), 0.0)
    means = {name: masked_mean(x.detach(), mask) for name, x in metrics.items()}
    return aggregate_loss(losses, mask, mode, totals), means


def clip_range(both: float, low: float | None, high: float | None) -> tuple[float, float]:
    """Return (ε_low, ε_high); each defaults to `both`."""
    low = both if low is None else low
    high = both if high is None else high
    if low < 0 or high < 0:
        raise ConfigError(f"clip range got ({low}, {high}), expected numbers from 0 up")
    return low, high


def clipped_surrogate(
    ratio: torch.Tensor, advantages: torch.Tensor, low: float, high: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return −min(r A, clip(r, 1 − ε_low, 1 + ε_high) A), and 1 where the clip applies, else 0."""
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1.0 - low, 1.0 + high)
    return torch.maximum(unclipped, clipped), is_above(clipped, unclipped)


def is_above(x: torch.Tensor, y: torch.Tensor | float) -> torch.Tensor:
    """Return x > y as 0 and 1 of x's own type, which can be multiplied and averaged."""
    return (x > y).to(x.dtype)
