"""Generalised advantage estimation over the policy's own tokens."""

from __future__ import annotations

import torch

from turnwise.algo.fast import gae as fast
from turnwise.algo.masked import as_mask, masked_whiten, wide
from turnwise.plain_mode import is_plain


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
    rewards, values = wide(token_level_rewards), wide(values)
    if lam >= fast.MIN_LAMBDA and not is_plain("algo.gae"):
        return fast.gae(rewards, values, mask, gamma, lam, bootstrap_values, whiten)
    advantages = torch.zeros_like(values)
    # In float64: over thousands of tokens float32 would lose digits.
    next_advantage = torch.zeros(len(values), dtype=torch.float64, device=values.device)
    next_value = next_advantage if bootstrap_values is None else bootstrap_values.double()
    for t in reversed(range(values.shape[1])):
        here, value = mask[:, t], values[:, t].double()
        delta = rewards[:, t] + gamma * next_value - value
        advantage = delta + gamma * lam * next_advantage
        advantages[:, t] = torch.where(here, advantage, 0.0)
        next_advantage = torch.where(here, advantage, next_advantage)
        next_value = torch.where(here, value, next_value)
    returns = torch.where(mask, advantages + values, 0.0)
    if whiten:
        # An advantage is a difference of return and value, and rounded as these are.
        advantages = masked_whiten(advantages, mask, minuends=returns)
    return advantages, returns


def estimate_advantages(
    rewards: torch.Tensor,
    values: torch.Tensor,
    dones: torch.Tensor,
    gamma: float,
    lam: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """GAE for plain step data: rows [B, T] of steps in which `dones` marks the ends of episodes.

    The steps up to each done are one episode; the value after the last step of a row is 0.
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

    def to_rows(x: torch.Tensor) -> torch.Tensor:
        return x.new_zeros(shape).index_put_((episode, position), x)

    exists = to_rows(torch.ones_like(ends))
    advantages, returns = compute_gae_advantage_return(
        to_rows(rewards), to_rows(values), exists, gamma, lam, whiten=False
    )
    return advantages[episode, position], returns[episode, position]
