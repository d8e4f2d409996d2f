"""The optimal token baseline: a baseline of its own for each position of a group."""

from __future__ import annotations

import torch

from turnwise.algo.groups import GroupIndex, Groups
from turnwise.algo.masked import as_mask, discounted_suffix_sum, keep, wide


@torch.no_grad()
def compute_optimal_token_baseline_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: GroupIndex,
    old_log_probs: torch.Tensor,
    sum_pi_squared: torch.Tensor,
    *,
    importance_weights: torch.Tensor | None = None,
    handle_zero_tail: bool = True,
    epsilon: float = 1e-8,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Optimal token baseline: the variance-minimising baseline, position by position.

    For the k-th policy token of the episodes of a group, with G the reward-to-go:

        B_k = Σ_i G_ik W_ik / Σ_i W_ik        A_ik = G_ik − B_k
        W_ik = Σ_(j ≤ k) (1 − 2 π_ij + Σ_v π_ij(v)²)

    W is the squared norm of the log-prob's gradient with respect to the logits, summed up to k: an
    episode with large gradients weighs more in the baseline.

    "Position" counts the policy's tokens, so that turns of different lengths are
    comparable. For answers of one turn this is VERL's optimal_token_baseline, for several turns its
    tir_optimal_token_baseline. An episode that is alone in its group keeps its returns, since
    the baseline of a position that only one episode reached would be that episode itself.

    Args:
        token_level_rewards, response_mask, old_log_probs: [B, T].
        index: [B], the group of each episode.
        sum_pi_squared: [B, T], Σ_v π(v)² over the vocabulary.
        importance_weights: [B, T], learner against sampler; their squares scale W.
        handle_zero_tail: At positions that only the longest episode of a group reaches, use
            baseline 0 rather than its own return.

    Returns:
        advantages, returns: [B, T].
    """
    mask = as_mask(response_mask)
    returns = discounted_suffix_sum(token_level_rewards, mask, 1.0)
    energy = 1.0 - 2.0 * wide(old_log_probs).exp() + sum_pi_squared
    if importance_weights is not None:
        energy = energy * wide(importance_weights).square()
    energy = keep(energy, mask).cumsum(1)

    packed = _PolicyTokens(mask)
    packed_energy = packed.gather(energy)
    groups = Groups.of(index, mask)
    weighted = groups.totals(packed.gather(returns) * packed_energy)
    baseline = weighted / (groups.totals(packed_energy) + epsilon)
    baselines = baseline[groups.ids]
    baselines[groups.is_alone] = 0.0
    if handle_zero_tail:
        _clear_tails(baselines, packed.lengths, groups)
    return keep(returns - packed.scatter(baselines), mask), returns


def _clear_tails(baselines: torch.Tensor, lengths: torch.Tensor, groups: Groups) -> None:
    """Set the baseline to 0 at positions that only the longest episode of a group reaches."""
    longest, second = groups.best_two(lengths)
    alone_from = torch.full_like(lengths, baselines.shape[1])
    alone_from[longest] = lengths[second]
    position = torch.arange(baselines.shape[1], device=baselines.device)
    baselines.masked_fill_(position >= alone_from[:, None], 0.0)


class _PolicyTokens:
    """Moves between positions in the row and positions among the row's policy tokens."""

    def __init__(self, mask: torch.Tensor) -> None:
        self.lengths = mask.sum(1)
        self._mask = mask
        self._width = int(self.lengths.max()) if mask.numel() else 0
        self._is_prefix = not bool((mask[:, 1:] & ~mask[:, :-1]).any()) and bool(
            (mask[:, 0] | (self.lengths == 0)).all() if mask.shape[1] else True
        )
        if not self._is_prefix:
            rows, self._columns = mask.nonzero(as_tuple=True)
            first = self.lengths.cumsum(0) - self.lengths
            ranks = torch.arange(len(rows), device=mask.device) - first[rows]
            self._source = rows * mask.shape[1] + self._columns
            self._target = rows * self._width + ranks

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """[B, T] -> [B, K]: the policy tokens moved to the front, 0 behind them."""
        if self._is_prefix:
            return keep(x[:, : self._width].contiguous(), self._mask[:, : self._width].contiguous())
        packed = x.new_zeros(len(x) * self._width)
        packed[self._target] = x.reshape(-1)[self._source]
        return packed.view(len(x), self._width)

    def scatter(self, packed: torch.Tensor) -> torch.Tensor:
        """[B, K] -> [B, T]: back to where they stood; 0 elsewhere."""
        if self._is_prefix:
            missing = self._mask.shape[1] - self._width
            return torch.nn.functional.pad(packed, (0, missing))
        x = packed.new_zeros(self._mask.numel())
        x[self._source] = packed.reshape(-1)[self._target]
        return x.view(self._mask.shape)
