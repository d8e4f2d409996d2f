"""Sums, means, recurrences and loss aggregation over unmasked tokens.

A mask may come as bool, int or float; a masked token never changes a result, not even if it
holds NaN.
"""

import math
from dataclasses import dataclass
from typing import TypeAlias, get_args

import torch
from torch.nn.functional import pad

from turnwise.config.sections import LossAggregation
from turnwise.errors import ConfigError, did_you_mean

TensorMetrics: TypeAlias = dict[str, torch.Tensor]
"""Scalar tensors without a gradient: reading one transfers it from the GPU, keeping it does not."""
ROUNDING = 4
"""Differences of up to this many units in the last place of the numbers compared are rounding."""


def as_mask(mask: torch.Tensor) -> torch.Tensor:
    return mask if mask.dtype is torch.bool else mask.bool()


def wide(x: torch.Tensor) -> torch.Tensor:
    """Return `x` in float32 or wider: nothing here is computed in half precision or in integers."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def keep(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return `x` where the bool mask is set, 0 elsewhere, without a gradient.

    `x` may have one column, which is broadcast.
    """
    return torch.where(mask, x.detach(), 0.0)


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
    ones = torch.ones(len(mask), dtype=torch.float64, device=mask.device)
    if mode == "token-sum":
        return ones
    if mode == "token-mean":
        return ones / (totals.num_tokens or mask.sum().clamp(min=1))
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


# Weights inside one block span at most this factor: terms of up to 1e25 do not overflow float32.
_BLOCK_RANGE = 1e12
# Below it, what follows a token is lost in the token's own rounding, and powers of it underflow.
_SMALLEST_DECAY = 1e-30


@torch.no_grad()
def discounted_suffix_sum(x: torch.Tensor, mask: torch.Tensor, decay: float) -> torch.Tensor:
    """S_t = x_t + decay · S_(next policy token), over the tokens where `mask` is set.

    Masked tokens are skipped: they add nothing, discount nothing, and their own result is 0.

    x is computed in float32 or wider, and decay is from 0 to 1.

    There is no loop over time. Read backwards, a row is S_j = x_j + decay · S_(j−1). With c_j the
    number of policy tokens so far, S_j = decay^c_j · Σ_(i ≤ j) decay^(−c_i) · x_i: a running sum of
    rescaled terms. Terms only shrink relative to the newest one, so nothing cancels.
    """
    mask = as_mask(mask)
    x = torch.where(mask, wide(x), 0.0)
    num_rows, length = x.shape
    if decay < _SMALLEST_DECAY or length == 0:
        return x
    if decay == 1.0:
        return torch.where(mask, x.flip(1).cumsum(1).flip(1), 0.0)
    # The row is cut into blocks to keep decay^(−c) small; sizes that divide it save padding.
    longest = max(1, int(math.log(_BLOCK_RANGE) / -math.log(decay)))
    fewest = -(-length // longest)
    num_blocks = next((n for n in range(fewest, 2 * fewest) if length % n == 0), fewest)
    block = -(-length // num_blocks)
    padding = (0, num_blocks * block - length)
    terms = pad(x.flip(1), padding).view(num_rows, num_blocks, block)
    counts = pad(mask.flip(1), padding).view(terms.shape).cumsum(2)
    # No block has more different counts than tokens, so their powers are looked up, each rounded
    # once from float64.
    exponents = torch.arange(block + 1, dtype=torch.float64, device=x.device)
    weights = torch.pow(decay, exponents).to(x.dtype)[counts]
    sums = (terms / weights).cumsum(2).mul_(weights)
    # The last sum of a block is carried into the next.
    ends, decays = sums[:, :, -1].clone(), weights[:, :, -1]
    for i in range(1, num_blocks - 1):
        ends[:, i] += decays[:, i] * ends[:, i - 1]
    sums[:, 1:] += weights[:, 1:] * ends[:, :-1, None]
    return torch.where(mask, sums.flatten(1)[:, :length].flip(1), 0.0)
