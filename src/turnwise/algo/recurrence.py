"""The recurrence behind GAE and discounted returns."""

from __future__ import annotations

import math

import torch
from torch.nn.functional import pad

from turnwise.algo.masked import as_mask, wide

# Weights inside one block span at most this factor: terms of up to 1e25 do not overflow float32.
_BLOCK_RANGE = 1e12
# Below it, what follows a token is lost in the token's own rounding, and powers of it underflow.
_SMALLEST_DECAY = 1e-30


@torch.no_grad()
def discounted_suffix_sum(x: torch.Tensor, mask: torch.Tensor, decay: float) -> torch.Tensor:
    """S_t = x_t + decay · S_(next policy token), over the tokens where `mask` is set.

    Masked tokens are skipped: they add nothing, discount nothing, and their own result is 0.

    There is no loop over time. Read backwards, a row is S_j = x_j + decay · S_(j−1). With c_j the
    number of policy tokens so far, S_j = decay^c_j · Σ_(i ≤ j) decay^(−c_i) · x_i: a running sum of
    rescaled terms. Terms only shrink relative to the newest one, so nothing cancels.

    Args:
        x: [B, T], any float type; computed in float32 or wider.
        mask: [B, T].
        decay: from 0 to 1.

    Returns:
        [B, T], zero where masked.
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
