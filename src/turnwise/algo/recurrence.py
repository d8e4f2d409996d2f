"""The recurrence behind GAE and discounted returns."""

from __future__ import annotations

import torch

from turnwise.algo.fast import recurrence as fast
from turnwise.algo.masked import as_mask, wide
from turnwise.plain_mode import is_plain


@torch.no_grad()
def discounted_suffix_sum(x: torch.Tensor, mask: torch.Tensor, decay: float) -> torch.Tensor:
    """S_t = x_t + decay · S_(next policy token), over the tokens where `mask` is set.

    Masked tokens are skipped: they add nothing, discount nothing, and their own result is 0.

    Args:
        x: [B, T], any float type; computed in float32 or wider.
        mask: [B, T].
        decay: from 0 to 1.

    Returns:
        [B, T], zero where masked.
    """
    x, mask = wide(x), as_mask(mask)
    if not is_plain("algo.recurrence"):
        return fast.suffix_sum(x, mask, decay)
    result = torch.zeros_like(x)
    # In float64: over thousands of tokens float32 would lose digits.
    later = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    for t in reversed(range(x.shape[1])):
        later = torch.where(mask[:, t], x[:, t] + decay * later, later)
        result[:, t] = torch.where(mask[:, t], later, 0.0)
    return result
