"""Generalised advantage estimation over the policy's own tokens."""

from __future__ import annotations

import torch

from turnwise.algo.masked import Moments, RowMask, as_mask, whiten_kept_, wide
from turnwise.algo.recurrence import suffix_sum_tile
from turnwise.algo.tiling import row_tiles

# Below this lambda the rearranged sum would lose digits to 1 / lambda.
_SMALL_LAMBDA = 0.1


@torch.no_grad()
def compute_gae_advantage_return(
    token_level_rewards: torch.Tensor,
    values: torch.Tensor,
    response_mask: torch.Tensor,
    gamma: float,
    lam: float,
    *,
    bootstrap_values: torch.Tensor | None = None,
    whiten: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """GAE (Schulman et al., https://arxiv.org/abs/1506.02438) across turns.

    Over the policy's tokens t, with observation tokens skipped:

        δ_t = r_t + γ V_(t+1) − V_t        A_t = Σ_k (γλ)^k δ_(t+k)        R_t = A_t + V_t

    Args:
        token_level_rewards: [B, T].
        values: [B, T], the critic's values at rollout time.
        response_mask: [B, T], set on the tokens that the policy sampled.
        gamma: Discount per policy token.
        lam: λ; 1 gives returns minus values, 0 the one-step error.
        bootstrap_values: [B], the value of the state after the last token, for episodes that were
            cut rather than finished; 0 if not given.
        whiten: Bring the advantages of the batch to mean 0, variance 1 (returns are untouched).

    Returns:
        advantages, returns: [B, T] each, zero on masked tokens. (VERL leaves the neighbours'
        values there; nothing may use them.)
    """
    mask = as_mask(response_mask)
    if bootstrap_values is not None:
        extra = gamma * wide(bootstrap_values)
        token_level_rewards = _with_bootstrap(wide(token_level_rewards), mask, extra)
    dtype = torch.promote_types(values.dtype, torch.float32)
    advantages = torch.empty(values.shape, dtype=dtype, device=values.device)
    returns = torch.empty_like(advantages)
    moments = Moments(values.device)
    for rows in row_tiles(values):
        tile = RowMask(mask[rows], dtype)
        inputs = token_level_rewards[rows].to(dtype), values[rows].to(dtype)
        kept = tile.keep_(_gae_tile(*inputs, mask[rows], tile, gamma, lam, advantages[rows]))
        tile.keep_(torch.add(kept, inputs[1], out=returns[rows]))
        if whiten:
            # An advantage is a difference of return and value, and rounded as these are.
            moments.add(kept, tile.numbers, minuends=returns[rows])
    if whiten:
        whiten_kept_(advantages, mask, moments)
    return advantages, returns


def _gae_tile(
    rewards: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    tile: RowMask,
    gamma: float,
    lam: float,
    out: torch.Tensor,
) -> torch.Tensor:
    """Advantages of a few rows, written to `out`; those of masked tokens are anything."""
    if lam < _SMALL_LAMBDA:
        errors = rewards + gamma * _next_values(values, mask) - values
        return out.copy_(suffix_sum_tile(tile.keep_(errors), tile, gamma * lam))
    # The values telescope: A_t = Σ_k (γλ)^k (r + (1/λ − 1) V)_(t+k) − V_t / λ, which needs no
    # look-up of the next policy token's value.
    terms = tile.keep_(torch.add(rewards, values, alpha=1.0 / lam - 1.0))
    sums = suffix_sum_tile(terms, tile, gamma * lam)
    return torch.sub(sums, values, alpha=1.0 / lam, out=out)


def estimate_advantages(
    rewards: torch.Tensor,
    values: torch.Tensor,
    dones: torch.Tensor,
    gamma: float,
    lam: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """GAE for plain step data: rows [B, T] of steps in which `dones` marks the ends of episodes.

    Each stretch up to a done is one episode; what follows the last step is worth nothing.
    Returns advantages and returns [B, T], not whitened.
    """
    num_rows, row_length = rewards.shape
    if not rewards.numel():
        return wide(rewards).clone(), wide(rewards).clone()
    ends = as_mask(dones)
    before = torch.zeros_like(ends)
    before[:, 1:] = ends[:, :-1]
    before[:, 0] = True
    # One row per episode: where it starts says which it is, and how far each step is into it.
    start = torch.where(before, torch.arange(row_length, device=rewards.device), 0).cummax(1).values
    episode = before.flatten().cumsum(0).sub_(1).view(num_rows, row_length)
    position = torch.arange(row_length, device=rewards.device) - start
    shape = (int(before.sum()), int(position.max()) + 1)

    def spread(x: torch.Tensor) -> torch.Tensor:
        return x.new_zeros(shape).index_put_((episode, position), x)

    exists = spread(torch.ones_like(ends))
    advantages, returns = compute_gae_advantage_return(
        spread(rewards), spread(values), exists, gamma, lam, whiten=False
    )
    return advantages[episode, position], returns[episode, position]


def _with_bootstrap(rewards: torch.Tensor, mask: torch.Tensor, extra: torch.Tensor) -> torch.Tensor:
    """The rewards with `extra` [B] added on each row's last policy token."""
    is_last = mask & (mask.cumsum(1) == mask.sum(1, keepdim=True))
    return rewards + torch.where(is_last, extra[:, None], 0.0)


def _next_values(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The value at the next policy token after each token; 0 after the last one."""
    length = values.shape[1]
    position = torch.arange(length, device=values.device)
    here_or_later = torch.where(mask, position, length).flip(1).cummin(1).values.flip(1)
    later = torch.cat([here_or_later[:, 1:], here_or_later.new_full((len(values), 1), length)], 1)
    padded = torch.cat([values, values.new_zeros(len(values), 1)], 1)
    return padded.gather(1, later)
