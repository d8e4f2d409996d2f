"""GAE without a loop over time; `advantages/gae.py` has the formula."""

from __future__ import annotations

import torch

from turnwise.algo.fast.masking import Moments, RowMask, whiten_kept
from turnwise.algo.fast.recurrence import suffix_sum_tile
from turnwise.algo.fast.tiles import row_tiles

# Below this lambda the rearranged sum would lose digits to 1 / lambda.
MIN_LAMBDA = 0.1


def gae(
    rewards: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    gamma: float,
    lam: float,
    bootstrap_values: torch.Tensor | None,
    whiten: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return advantages and returns [B, T]; rewards and values are float32 or wider.

    `lam` is at least `MIN_LAMBDA`.
    """
    if bootstrap_values is not None:
        rewards = _with_bootstrap(rewards, mask, gamma * bootstrap_values.to(rewards.dtype))
    dtype = values.dtype
    advantages, returns = torch.empty_like(values), torch.empty_like(values)
    moments = Moments(values.device)
    for rows in row_tiles(values):
        tile = RowMask(mask[rows], dtype)
        inputs = rewards[rows].to(dtype), values[rows]
        kept = tile.keep_(_gae_tile(*inputs, tile, gamma, lam, advantages[rows]))
        tile.keep_(torch.add(kept, inputs[1], out=returns[rows]))
        if whiten:
            # An advantage is a difference of return and value, and rounded as these are.
            moments.add(kept, tile.numbers, minuends=returns[rows])
    if whiten:
        whiten_kept(advantages, mask, moments)
    return advantages, returns


def _gae_tile(
    rewards: torch.Tensor,
    values: torch.Tensor,
    tile: RowMask,
    gamma: float,
    lam: float,
    out: torch.Tensor,
) -> torch.Tensor:
    """Advantages of a few rows, written to `out`; those of masked tokens are undefined."""
    # The values telescope: A_t = Σ_k (γλ)^k (r + (1/λ − 1) V)_(t+k) − V_t / λ, which needs no
    # look-up of the next policy token's value.
    terms = tile.keep_(torch.add(rewards, values, alpha=1.0 / lam - 1.0))
    sums = suffix_sum_tile(terms, tile, gamma * lam)
    return torch.sub(sums, values, alpha=1.0 / lam, out=out)


def _with_bootstrap(rewards: torch.Tensor, mask: torch.Tensor, extra: torch.Tensor) -> torch.Tensor:
    """The rewards with `extra` [B] added on each row's last policy token."""
    is_last = mask & (mask.cumsum(1) == mask.sum(1, keepdim=True))
    return rewards + torch.where(is_last, extra[:, None], 0.0)
