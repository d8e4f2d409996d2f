"""Sums, means and loss aggregation over unmasked tokens.

A mask may come as bool, int or float; a masked token never changes a result, not even if it
holds NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch

from turnwise.algo.types import ROUNDING
from turnwise.errors import ConfigError, did_you_mean

LossAggregation: TypeAlias = Literal[
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
    "seq-mean-token-mean",
]


def as_mask(mask: torch.Tensor) -> torch.Tensor:
    """Return the mask as bool."""
    return mask if mask.dtype is torch.bool else mask.bool()


def wide(x: torch.Tensor) -> torch.Tensor:
    """Return `x` in float32 or wider: nothing here is computed in half precision or in integers."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def keep(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return `x` where the bool mask is set, 0 elsewhere, without a gradient.

    `x` may have one column, which is broadcast.
    """
    return torch.where(mask, x.detach(), 0.0)


@torch.no_grad()
def masked_row_sum(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the sum of each row over its unmasked tokens: [B, T] -> [B]."""
    return torch.where(mask, wide(x), 0.0).sum(1)


def masked_mean(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the mean over all unmasked tokens; 0 if there are none."""
    mask = as_mask(mask)
    return torch.where(mask, x, 0.0).sum() / mask.sum().clamp(min=1)


@torch.no_grad()
def masked_whiten(
    x: torch.Tensor, mask: torch.Tensor, minuends: torch.Tensor | None = None
) -> torch.Tensor:
    """Normalise the unmasked tokens of the whole batch to mean 0 and variance 1.

    (x − mean) / √(variance + 1e-8); masked tokens become 0. A single token is only centred. Tokens
    that differ by rounding alone become 0. Where x is a difference, `minuends` [B, T] are what was
    subtracted from, 0 on masked tokens: the rounding of x is as large as theirs.
    """
    kept = torch.where(mask, x, 0.0).double()
    count = mask.sum().clamp(min=1)
    mean = kept.sum() / count
    centred = torch.where(mask, kept - mean, 0.0)
    variance = centred.square().sum() / (count - 1).clamp(min=1)
    mean_square = mean.square() + variance
    if minuends is not None:
        mean_square = torch.maximum(mean_square, minuends.double().square().sum() / count)
    rounding = (ROUNDING * torch.finfo(x.dtype).eps) ** 2 * mean_square
    scale = torch.where(variance > rounding, torch.rsqrt(variance + 1e-8), 0.0)
    return (centred * scale).to(x.dtype)


@dataclass(frozen=True)
class BatchTotals:
    """Sizes of the whole batch, when a loss is computed on one part of it.

    With them the losses of the parts, and so their gradients, add up to those of the whole batch. A
    size that is None is counted in the part itself.
    """

    num_tokens: float | None = None
    """Policy tokens."""
    num_sequences: float | None = None
    """Rows with at least one policy token."""
    horizon: float | None = None
    """The constant of "seq-mean-token-sum-norm"; None: the row length."""


def row_weights(
    mask: torch.Tensor, mode: LossAggregation, totals: BatchTotals | None = None
) -> torch.Tensor:
    """Return the weight [B] of each row's token losses: loss = Σ_i weight_i · Σ_t loss_it.

    Every way of aggregating is such a weight:

    ========================  ==================================================
    token-mean                1 / tokens                   (DAPO, 2503.14476)
    token-sum                 1
    seq-mean-token-sum        1 / sequences
    seq-mean-token-sum-norm   1 / (sequences · horizon)    (Dr. GRPO, 2503.20783)
    seq-mean-token-mean       1 / (sequences · own tokens) (GRPO, 2402.03300)
    ========================  ==================================================

    Rows without a token do not count as sequences.
    """
    totals = totals or BatchTotals()
    mask = as_mask(mask)
    if mode == "token-mean" and not totals.num_tokens:
        return mask.sum().clamp(min=1).double().reciprocal().expand(len(mask))
    ones = torch.ones(len(mask), dtype=torch.float64, device=mask.device)
    if mode == "token-sum":
        return ones
    if mode == "token-mean":
        return ones / float(totals.num_tokens or 1)
    lengths = mask.sum(1)
    per_sequence = ones / (totals.num_sequences or (lengths > 0).sum().clamp(min=1))
    if mode == "seq-mean-token-sum":
        return per_sequence
    if mode == "seq-mean-token-sum-norm":
        return per_sequence / (totals.horizon or mask.shape[1])
    if mode == "seq-mean-token-mean":
        return per_sequence / lengths.clamp(min=1)
    raise ConfigError(
        f"loss aggregation got {mode!r}. {did_you_mean(str(mode), get_args(LossAggregation))}"
    )


def aggregate_loss(
    token_losses: torch.Tensor,
    mask: torch.Tensor,
    mode: LossAggregation = "token-mean",
    totals: BatchTotals | None = None,
) -> torch.Tensor:
    """Reduce token losses [B, T] to a scalar; see `row_weights` for the modes."""
    weights = row_weights(mask, mode, totals).to(token_losses.dtype)
    return torch.where(as_mask(mask), token_losses, 0.0).sum(1).mul(weights).sum()
