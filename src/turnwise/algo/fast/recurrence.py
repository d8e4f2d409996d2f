"""The recurrence behind GAE and discounted returns, without a loop over time."""

from __future__ import annotations

import math

import torch
from torch.nn.functional import pad

from turnwise.algo.fast.masking import RowMask
from turnwise.algo.fast.tiles import row_tiles

# Weights inside one block span at most this factor: terms of up to 1e25 do not overflow float32.
_BLOCK_RANGE = 1e12
# Below it, what follows a token is lost in the token's own rounding, and powers of it underflow.
_SMALLEST_DECAY = 1e-30


def suffix_sum(x: torch.Tensor, mask: torch.Tensor, decay: float) -> torch.Tensor:
    """`recurrence.discounted_suffix_sum`, a few rows at a time."""
    result = torch.empty_like(x)
    for rows in row_tiles(x):
        tile = RowMask(mask[rows], x.dtype)
        result[rows] = tile.keep_(suffix_sum_tile(tile.keep(x[rows]), tile, decay))
    return result


def suffix_sum_tile(x: torch.Tensor, mask: RowMask, decay: float) -> torch.Tensor:
    """The suffix sums of a few rows whose masked tokens are 0.

    Read backwards, a row is S_j = x_j + decay · S_(j−1). With c_j the number of policy tokens so
    far, S_j = decay^c_j · Σ_(i ≤ j) decay^(−c_i) · x_i: a running sum of rescaled terms. Terms
    only shrink relative to the newest one, so nothing cancels. The row is cut into blocks to keep
    decay^(−c) small; the last sum of a block is carried into the next. A masked token repeats
    the sum of the token after it.
    """
    num_rows, length = x.shape
    if decay < _SMALLEST_DECAY or length == 0:
        return x
    backwards = x.flip(1)
    if decay == 1.0:
        return torch.cumsum(backwards, 1, out=backwards).flip(1)
    num_blocks, block = _blocks(length, decay)
    padding = num_blocks * block - length
    shape = (num_rows, num_blocks, block)
    sums = (pad(backwards, (0, padding)) if padding else backwards).view(shape)
    counted = mask.bytes_backwards()
    counted = (pad(counted, (0, padding)) if padding else counted).view(shape)
    weights = _powers(decay, counted.cumsum(2, dtype=torch.int32), x.dtype)
    torch.cumsum(sums.div_(weights), 2, out=sums).mul_(weights)
    _carry_over(sums, weights)
    return sums.view(num_rows, -1)[:, :length].flip(1)


def _powers(decay: float, counts: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """decay^count, rounded once.

    Looked up, since no block has more different counts than tokens: on an Arm core an exponential
    takes as long as ten additions, and would have to be taken twice to be as accurate.
    """
    exponents = torch.arange(counts.shape[2] + 1, dtype=torch.float64, device=counts.device)
    table = torch.pow(decay, exponents).to(dtype)
    return table.index_select(0, counts.view(-1)).view(counts.shape)


def _blocks(length: int, decay: float) -> tuple[int, int]:
    """Number and size of the blocks; sizes that divide the row are taken, to save padding."""
    longest = max(1, int(math.log(_BLOCK_RANGE) / -math.log(decay)))
    fewest = -(-length // longest)
    number = next((n for n in range(fewest, 2 * fewest) if length % n == 0), fewest)
    return number, -(-length // number)


def _carry_over(sums: torch.Tensor, weights: torch.Tensor) -> None:
    """Add to each block the discounted carry of the blocks before it; [rows, blocks, block]."""
    num_blocks = sums.shape[1]
    if num_blocks == 1:
        return
    ends, decays = sums[:, :, -1].T.clone(), weights[:, :, -1].T
    for i in range(1, num_blocks - 1):
        ends[i].addcmul_(decays[i], ends[i - 1])
    sums[:, 1:].addcmul_(weights[:, 1:], ends[:-1].T.unsqueeze(2))
