"""ReMax in one pass over the batch; `advantages/outcome.py` has the formula."""

from __future__ import annotations

import torch

from turnwise.algo.fast.masking import RowMask
from turnwise.algo.fast.recurrence import suffix_sum_tile
from turnwise.algo.fast.tiles import has_kernels, row_tiles


def remax(
    rewards: torch.Tensor, mask: torch.Tensor, baselines: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return advantages and returns [B, T]; rewards [B, T] are float32 or wider, baselines [B]."""
    if has_kernels(rewards) and rewards.numel():
        from turnwise.algo.fast.remax_kernel import remax_on_gpu

        return remax_on_gpu(rewards, mask, baselines)
    column = baselines.to(rewards.dtype)[:, None]
    advantages, returns = torch.empty_like(rewards), torch.empty_like(rewards)
    for rows in row_tiles(rewards):
        tile = RowMask(mask[rows], rewards.dtype)
        sums = tile.keep_(suffix_sum_tile(tile.keep(rewards[rows]), tile, 1.0))
        returns[rows] = sums
        torch.addcmul(sums, tile.numbers, column[rows], value=-1.0, out=advantages[rows])
    return advantages, returns
