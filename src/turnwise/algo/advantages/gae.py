"""Generalised advantage estimation over the policy's own tokens."""

import torch
from torch.nn.functional import pad

from turnwise.algo.masked import as_mask, discounted_suffix_sum, masked_whiten, wide


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
        whiten: Normalise the advantages of the batch to mean 0 and variance 1 (not the returns).

    Returns:
        advantages, returns: [B, T] each, zero on masked tokens. (VERL leaves the neighbours'
        values there; nothing may use them.)
    """
    mask = as_mask(response_mask)
    # In float64: values may be many times as large as the differences of which advantages consist.
    rewards, exact = token_level_rewards.double(), values.double()
    num_rows, length = mask.shape
    after_last = exact.new_zeros(num_rows)
    if bootstrap_values is not None:
        after_last = bootstrap_values.double()
    # For each token the column of the next policy token; `length` stands for the state after the
    # last one, whose value is appended.
    columns = torch.arange(length, device=mask.device).expand_as(mask).masked_fill(~mask, length)
    following = pad(columns.flip(1).cummin(1).values.flip(1)[:, 1:], (0, 1), value=length)
    next_values = torch.cat([exact, after_last[:, None]], 1).gather(1, following)
    deltas = rewards + gamma * next_values - exact
    sums = discounted_suffix_sum(deltas, mask, gamma * lam)
    dtype = wide(values).dtype
    advantages, returns = sums.to(dtype), torch.where(mask, sums + exact, 0.0).to(dtype)
    if whiten:
        # An advantage is a difference of return and value, and rounded as these are.
        advantages = masked_whiten(advantages, mask, minuends=returns)
    return advantages, returns
