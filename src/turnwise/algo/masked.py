"""Sums, means and loss aggregation over the tokens that count.

A mask may come as bool, int or float; a masked token never changes a result, not even if it
holds NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias, get_args

import torch

from turnwise.algo.tiling import row_tiles
from turnwise.errors import ConfigError, did_you_mean

LossAggregation: TypeAlias = Literal[
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
    "seq-mean-token-mean",
]


def as_mask(mask: torch.Tensor) -> torch.Tensor:
    """The mask as bool: set where a token counts."""
    return mask if mask.dtype is torch.bool else mask.bool()


def wide(x: torch.Tensor) -> torch.Tensor:
    """`x` in float32 or wider: nothing here is computed in half precision or in whole numbers."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


_BITS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}


class RowMask:
    """The mask of a few rows, in the forms that make masking cheap.

    `keep` is `torch.where(mask, x, 0)`, NaN included, done by clearing bits on a CPU: there `where`
    branches on each element, which is many times slower on a mask of many turns. On a GPU
    `where` is one step instead of three.
    """

    def __init__(self, mask: torch.Tensor, dtype: torch.dtype) -> None:
        # By way of bytes, which torch converts far faster than bools.
        self._bytes = mask.view(torch.uint8)
        self._mask = mask
        self._bits = None if mask.is_cuda else _bits_of(mask, dtype)
        self._dtype = dtype

    @cached_property
    def numbers(self) -> torch.Tensor:
        """0 and 1 as floats."""
        return self._bytes.to(self._dtype)

    def bytes_backwards(self) -> torch.Tensor:
        """0 and 1 as bytes, each row from its end."""
        return self._bytes.flip(1)

    def keep(self, x: torch.Tensor) -> torch.Tensor:
        """`x` where the mask is set, 0 elsewhere."""
        if self._bits is None:
            return torch.where(self._mask, x, 0.0)
        return x.view(self._bits.dtype).bitwise_and(self._bits).view(self._dtype)

    def keep_(self, x: torch.Tensor) -> torch.Tensor:
        """The same, in place."""
        if self._bits is None:
            return x.masked_fill_(~self._mask, 0.0)
        x.view(self._bits.dtype).bitwise_and_(self._bits)
        return x


def keep(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """`x` where the bool mask is set, 0 elsewhere; no gradient flows through it.

    `x` may have one column, which is then repeated.
    """
    if mask.is_cuda:
        return torch.where(mask, x.detach(), 0.0)
    bits = _bits_of(mask, x.dtype)
    return bits.bitwise_and_(x.detach().view(bits.dtype)).view(x.dtype)


def _bits_of(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """All bits set where the mask is set: −1 as a byte stays −1 when it is widened."""
    return mask.view(torch.int8).neg().to(_BITS[dtype])


@torch.no_grad()
def masked_row_sum(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Sum of each row over its unmasked tokens: [B, T] -> [B]."""
    x = wide(x)
    if x.is_cuda:
        return torch.where(mask, x, 0.0).sum(1)
    total = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    for rows in row_tiles(x, num_parts=2):  # few steps, so that smaller tiles pay
        numbers = mask[rows].view(torch.uint8).to(x.dtype)
        torch.sum(numbers.mul_(x[rows]), 1, out=total[rows])
    if bool(total.isfinite().all()):
        return total
    # Something here is not finite; if it was masked, it must not count.
    return torch.cat([keep(x[rows], mask[rows]).sum(1) for rows in row_tiles(x)])


def masked_mean(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean over all unmasked tokens; 0 if there are none."""
    mask = as_mask(mask)
    return torch.where(mask, x, 0.0).sum() / mask.sum().clamp(min=1)


ROUNDING = 4
"""Differences of up to this many units in the last place of the numbers compared are rounding."""


class Moments:
    """Mean and variance of the unmasked tokens, accumulated tile by tile (Chan et al., 1979)."""

    def __init__(self, device: torch.device) -> None:
        self.count, self.mean, self.squares, self._sizes = torch.zeros(
            4, dtype=torch.float64, device=device
        ).unbind()

    def add(
        self, x: torch.Tensor, numbers: torch.Tensor, minuends: torch.Tensor | None = None
    ) -> None:
        """Add a tile whose masked tokens are 0; `numbers` is its mask as 0 and 1.

        `minuends` are the numbers that x is a difference of: they say how far x is rounded, which
        is x itself if none are given.
        """
        tile_count = numbers.sum().double()
        # A rough mean is enough to centre with; what it misses is measured and added.
        rough = (x.sum().double() / tile_count.clamp(min=1)).to(x.dtype)
        centred = torch.addcmul(x, numbers, -rough)
        rest = centred.sum().double() / tile_count.clamp(min=1)
        spread = (_sum_of_squares(centred) - tile_count * rest.square()).clamp(min=0)
        tile_mean = rough.double() + rest
        shift = tile_mean - self.mean
        total = (self.count + tile_count).clamp(min=1)
        self.squares += spread + shift.square() * self.count * tile_count / total
        self.mean += shift * tile_count / total
        self.count += tile_count
        if minuends is not None:
            self._sizes += _sum_of_squares(minuends)

    @property
    def variance(self) -> torch.Tensor:
        """Unbiased; 0 for a single token."""
        return self.squares / (self.count - 1).clamp(min=1)

    def scale(self, dtype: torch.dtype) -> torch.Tensor:
        """1 / √(variance + 1e-8); 0 where rounding in `dtype` alone explains the variance."""
        mean_square = torch.maximum(
            self.mean.square() + self.variance, self._sizes / self.count.clamp(min=1)
        )
        rounding = (ROUNDING * torch.finfo(dtype).eps) ** 2 * mean_square
        return torch.where(self.variance > rounding, torch.rsqrt(self.variance + 1e-8), 0.0)


def _sum_of_squares(x: torch.Tensor) -> torch.Tensor:
    """Σ x², in float64 where the squares are too large for x's own type."""
    flat = x.reshape(-1)
    if not x.is_cuda:
        total = flat.dot(flat).double()
        if bool(total.isfinite()):
            return total
    norm: torch.Tensor = torch.linalg.vector_norm(flat, dtype=torch.float64)
    return norm.square()


@torch.no_grad()
def masked_whiten_(
    x: torch.Tensor, mask: torch.Tensor, minuends: torch.Tensor | None = None
) -> torch.Tensor:
    """Bring the unmasked tokens of the whole batch to mean 0 and variance 1, in place.

    (x − mean) / √(variance + 1e-8); masked tokens become 0. A single token is only centred. Tokens
    that differ by rounding alone become 0: see `Moments.add` for what `minuends` says about that.
    """
    moments = Moments(x.device)
    for rows in row_tiles(x):
        tile = RowMask(mask[rows], x.dtype)
        sizes = None if minuends is None else minuends[rows]
        moments.add(tile.keep_(x[rows]), tile.numbers, sizes)
    return whiten_kept_(x, mask, moments)


def whiten_kept_(x: torch.Tensor, mask: torch.Tensor, moments: Moments) -> torch.Tensor:
    """The second half of `masked_whiten_`, for who has gathered the moments along the way."""
    scale = moments.scale(x.dtype)
    # x − mean before anything else: x · scale alone can have no digits left of the difference.
    mean = moments.mean.to(x.dtype)
    rest = ((moments.mean - mean.double()) * scale).to(x.dtype)
    scale = scale.to(x.dtype)
    for rows in row_tiles(x):
        numbers = mask[rows].view(torch.uint8).to(x.dtype)
        x[rows].addcmul_(numbers, -mean).mul_(scale).addcmul_(numbers, -rest)
    return x


@dataclass(frozen=True)
class BatchTotals:
    """Sizes of the whole batch, when a loss is computed on one part of it.

    With them the parts' losses, and so their gradients, add up to the whole batch's. What is None
    is counted in the part itself.
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
    """The weight [B] of each row's token losses, so that loss = Σ_i weight_i · Σ_t loss_it.

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
    """One number from the losses [B, T] of the tokens; see `row_weights` for the modes."""
    weights = row_weights(mask, mode, totals).to(token_losses.dtype)
    return torch.where(as_mask(mask), token_losses, 0.0).sum(1).mul(weights).sum()
