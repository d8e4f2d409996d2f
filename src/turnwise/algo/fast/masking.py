"""Masked sums, masking and whitening with less memory traffic; `masked.py` has the formulas."""

from __future__ import annotations

from functools import cached_property

import torch

from turnwise.algo.fast.tiles import row_tiles
from turnwise.algo.types import ROUNDING

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
    """`masked.keep` on a CPU, by clearing bits."""
    bits = _bits_of(mask, x.dtype)
    return bits.bitwise_and_(x.detach().view(bits.dtype)).view(x.dtype)


def _bits_of(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """All bits set where the mask is set: −1 as a byte stays −1 when it is widened."""
    return mask.view(torch.int8).neg().to(_BITS[dtype])


def row_sum(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """`masked.masked_row_sum` on a CPU, a few rows at a time."""
    total = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    for rows in row_tiles(x, num_parts=2):  # few operations, so that smaller tiles are faster
        numbers = mask[rows].view(torch.uint8).to(x.dtype)
        torch.sum(numbers.mul_(x[rows]), 1, out=total[rows])
    if bool(total.isfinite().all()):
        return total
    # Something is not finite; a masked token must not count.
    return torch.cat([keep(x[rows], mask[rows]).sum(1) for rows in row_tiles(x)])


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

        Where x is a difference, `minuends` are what was subtracted from: its rounding is as large
        as theirs.
        """
        tile_count = numbers.sum().double()
        # A rough mean is enough to centre with; its error is measured and added.
        rough = (x.sum().double() / tile_count.clamp(min=1)).to(x.dtype)
        centred = torch.addcmul(x, numbers, -rough)
        rest = centred.sum().double() / tile_count.clamp(min=1)
        tile_squares = (_sum_of_squares(centred) - tile_count * rest.square()).clamp(min=0)
        tile_mean = rough.double() + rest
        shift = tile_mean - self.mean
        total = (self.count + tile_count).clamp(min=1)
        self.squares += tile_squares + shift.square() * self.count * tile_count / total
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


def whiten(
    x: torch.Tensor, mask: torch.Tensor, minuends: torch.Tensor | None = None
) -> torch.Tensor:
    """`masked.masked_whiten`, in place and a few rows at a time."""
    moments = Moments(x.device)
    for rows in row_tiles(x):
        tile = RowMask(mask[rows], x.dtype)
        sizes = None if minuends is None else minuends[rows]
        moments.add(tile.keep_(x[rows]), tile.numbers, sizes)
    return whiten_kept(x, mask, moments)


def whiten_kept(x: torch.Tensor, mask: torch.Tensor, moments: Moments) -> torch.Tensor:
    """Whiten in place, with moments that were gathered before."""
    scale = moments.scale(x.dtype)
    # x − mean before anything else: x · scale alone can have no digits left of the difference.
    mean = moments.mean.to(x.dtype)
    rest = ((moments.mean - mean.double()) * scale).to(x.dtype)
    scale = scale.to(x.dtype)
    for rows in row_tiles(x):
        numbers = mask[rows].view(torch.uint8).to(x.dtype)
        x[rows].addcmul_(numbers, -mean).mul_(scale).addcmul_(numbers, -rest)
    return x
