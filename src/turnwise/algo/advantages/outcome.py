"""Advantages from the rewards of whole episodes, without a critic.

An episode's score s_i is the sum of its rewards on the policy's tokens (VERL adds those on masked
tokens too); its advantage is the same on each of its tokens, and 0 on masked ones. Means and
standard deviations are taken in float64, and scores that differ by rounding alone count as equal
(in float32, eight scores of 0.3 can have a standard deviation that is only rounding, and dividing
by it makes an advantage of 0.03).

An episode that is alone in its group gets 0: its raw score would depend on the arbitrary zero of
the reward scale. (VERL gives it its raw score, except in rloo_vectorized, which gives 0 as we do.
Where an estimator whitens, it does so afterwards.)
"""

from collections.abc import Sequence

import torch

from turnwise.algo.groups import GroupIndex, Groups
from turnwise.algo.masked import as_mask, discounted_suffix_sum, keep, masked_whiten, wide
from turnwise.errors import ConfigError


@torch.no_grad()
def compute_grpo_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: GroupIndex,
    *,
    norm_by_std: bool = True,
    epsilon: float = 1e-6,
) -> tuple[torch.Tensor, torch.Tensor]:
    """GRPO (Shao et al., https://arxiv.org/abs/2402.03300): compare with the group.

        A_i = (s_i − mean_group(s)) / (std_group(s) + ε)

    `norm_by_std=False` leaves the division out, as in Dr. GRPO (Liu et al.,
    https://arxiv.org/abs/2503.20783): easy and hard questions then weigh the same.
    """
    mask, scores, groups = _grouped(token_level_rewards, response_mask, index)
    relative = groups.relative(scores, norm_by_std, epsilon)
    return _on_tokens(relative, mask, token_level_rewards)


def compute_dr_grpo_advantage(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: GroupIndex
) -> tuple[torch.Tensor, torch.Tensor]:
    """Dr. GRPO (https://arxiv.org/abs/2503.20783): A_i = s_i − mean_group(s).

    Use it with the loss aggregation "seq-mean-token-sum-norm", which is its other half.
    """
    return compute_grpo_advantage(token_level_rewards, response_mask, index, norm_by_std=False)


@torch.no_grad()
def compute_grpo_passk_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: GroupIndex,
    *,
    norm_by_std: bool = True,
    epsilon: float = 1e-6,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pass@k (Tang et al., https://arxiv.org/abs/2503.19595): only a group's best is rewarded.

        A_best = (s_best − s_second) / (std_group(s) + ε),   0 for all others

    Of equal bests the first counts; its margin is 0 then anyway.
    """
    mask, scores, groups = _grouped(token_level_rewards, response_mask, index)
    if bool(groups.is_alone.any()):
        raise ConfigError("grpo_passk needs at least 2 episodes in each group, got a group of 1")
    best, second = groups.best_two(scores)
    margin = torch.zeros_like(scores)
    margin[best] = scores[best] - scores[second]
    margin = groups.without_rounding(margin, scores)
    if norm_by_std:
        margin /= groups.std(scores) + epsilon
    return _on_tokens(margin, mask, token_level_rewards)


@torch.no_grad()
def compute_gdpo_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: GroupIndex,
    *,
    reward_parts: torch.Tensor | None = None,
    part_weights: Sequence[float] | None = None,
    norm_by_std: bool = True,
    epsilon: float = 1e-6,
) -> tuple[torch.Tensor, torch.Tensor]:
    """GDPO (Liu et al., https://arxiv.org/abs/2601.05242): normalise each reward component.

        A_i = whiten( Σ_k w_k (s_ik − mean_group(s_k)) / (std_group(s_k) + ε) )

    so that a component with a large variance cannot dominate the others.

    Args:
        reward_parts: [B, D], the score of each episode in each component (format, accuracy, ...);
            without it the only component is the sum of the rewards.
        part_weights: D weights; 1 each if not given.
    """
    mask = as_mask(response_mask)
    precision = token_level_rewards.dtype if reward_parts is None else reward_parts.dtype
    if reward_parts is None:
        reward_parts = _scores(token_level_rewards, mask)[:, None]
    reward_parts = reward_parts.double().cpu()
    weights = [1.0] * reward_parts.shape[1] if part_weights is None else list(part_weights)
    if len(weights) != reward_parts.shape[1]:
        raise ConfigError(
            f"gdpo got {len(weights)} part_weights for {reward_parts.shape[1]} reward parts"
        )
    groups = Groups.from_index(index, reward_parts, precision)
    total = torch.zeros_like(reward_parts[:, 0])
    for component, weight in zip(reward_parts.unbind(1), weights, strict=True):
        total += weight * groups.relative(component, norm_by_std, epsilon)
    return _on_tokens(total, mask, token_level_rewards, whiten=True)


@torch.no_grad()
def compute_rloo_advantage(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: GroupIndex
) -> tuple[torch.Tensor, torch.Tensor]:
    """RLOO (Ahmadian et al., https://arxiv.org/abs/2402.14740): leave one out.

        A_i = s_i − mean_(j ≠ i)(s_j) = n / (n − 1) · (s_i − mean_group(s))

    The baseline does not depend on the episode itself, so the gradient is unbiased.
    """
    mask, scores, groups = _grouped(token_level_rewards, response_mask, index)
    scale = groups.sizes.double() / (groups.sizes - 1).clamp(min=1)
    return _on_tokens(groups.centred(scores) * scale, mask, token_level_rewards)


@torch.no_grad()
def compute_opo_advantage(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: GroupIndex
) -> tuple[torch.Tensor, torch.Tensor]:
    """OPO (Hao et al., https://arxiv.org/abs/2505.23585): a baseline weighted by length.

        A_i = s_i − Σ_group(l_j s_j) / Σ_group(l_j),    l_j = number of policy tokens

    the variance-minimising baseline if each token's gradient has the same norm.
    """
    mask, scores, groups = _grouped(token_level_rewards, response_mask, index)
    lengths = mask.sum(1).cpu()
    baseline = groups.sum(lengths * scores) / groups.sum(lengths).clamp(min=1)
    relative = groups.without_rounding(scores - baseline, scores)
    return _on_tokens(torch.where(groups.is_alone, 0.0, relative), mask, token_level_rewards)


@torch.no_grad()
def compute_gpg_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: GroupIndex,
    *,
    f_norm: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """GPG (Chu et al., https://arxiv.org/abs/2504.02546): centred, scaled by how many scored.

    A_i = (B / #{j : s_j ≠ 0}) · (s_i − mean_group(s)) / f_norm
    """
    mask, scores, groups = _grouped(token_level_rewards, response_mask, index)
    alpha = len(scores) / torch.count_nonzero(scores).clamp(min=1).double()
    return _on_tokens(alpha * groups.centred(scores) / f_norm, mask, token_level_rewards)


@torch.no_grad()
def compute_reinforce_plus_plus_advantage(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, gamma: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """REINFORCE++ (Hu et al., https://arxiv.org/abs/2501.03262): whitened discounted returns.

    R_t = Σ_k γ^k r_(t+k) over policy tokens        A = whiten(R) over the batch
    """
    mask = as_mask(response_mask)
    returns = discounted_suffix_sum(token_level_rewards, mask, gamma)
    return masked_whiten(returns, mask), returns


@torch.no_grad()
def compute_reinforce_plus_plus_baseline_advantage(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: GroupIndex
) -> tuple[torch.Tensor, torch.Tensor]:
    """REINFORCE++ with a group baseline (https://arxiv.org/abs/2501.03262).

    A = whiten over the batch of (s_i − mean_group(s))
    """
    mask, scores, groups = _grouped(token_level_rewards, response_mask, index)
    return _on_tokens(groups.centred(scores), mask, token_level_rewards, whiten=True)


@torch.no_grad()
def compute_remax_advantage(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, reward_baselines: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """ReMax (Li et al., https://arxiv.org/abs/2310.10505): the greedy episode is the baseline.

        A_t = Σ_(k ≥ 0) r_(t+k) − b_i

    Args:
        reward_baselines: [B], the score of the greedy episode from the same start.
    """
    mask = as_mask(response_mask)
    rewards = wide(token_level_rewards)
    returns = discounted_suffix_sum(rewards, mask, 1.0)
    return keep(returns - reward_baselines.to(rewards.dtype)[:, None], mask), returns


@torch.no_grad()
def compute_optimal_token_baseline_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: GroupIndex,
    old_log_probs: torch.Tensor,
    sum_pi_squared: torch.Tensor,
    *,
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
        sum_pi_squared: [B, T], Σ_v π(v)² over the vocabulary.
        handle_zero_tail: At positions that only the longest episode of a group reaches, use
            baseline 0 rather than its own return.
    """
    mask = as_mask(response_mask)
    returns = discounted_suffix_sum(token_level_rewards, mask, 1.0)
    energy = keep(1.0 - 2.0 * wide(old_log_probs).exp() + sum_pi_squared, mask).cumsum(1)

    # The policy tokens of each row moved to the front, 0 behind them: [B, T] -> [B, K].
    lengths = mask.sum(1)
    width = int(lengths.max()) if mask.numel() else 0
    rows, columns = mask.nonzero(as_tuple=True)
    ranks = torch.arange(len(rows), device=mask.device) - (lengths.cumsum(0) - lengths)[rows]

    def at_front(x: torch.Tensor) -> torch.Tensor:
        return x.new_zeros(len(mask), width).index_put((rows, ranks), x[rows, columns])

    packed_energy = at_front(energy)
    groups = Groups.from_index(index, mask)
    weighted = groups.totals(at_front(returns) * packed_energy)
    baselines = (weighted / (groups.totals(packed_energy) + epsilon))[groups.ids]
    baselines[groups.is_alone] = 0.0
    if handle_zero_tail:
        longest, second = groups.best_two(lengths)
        alone_from = torch.full_like(lengths, width)
        alone_from[longest] = lengths[second]
        position = torch.arange(width, device=mask.device)
        baselines.masked_fill_(position >= alone_from[:, None], 0.0)
    on_tokens = baselines.new_zeros(mask.shape)
    on_tokens[rows, columns] = baselines[rows, ranks]
    return keep(returns - on_tokens, mask), returns


def _scores(token_level_rewards: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the score of each episode [B], in float64: differences within a group may be small.

    On the CPU, wherever the rewards are: for B numbers, launching GPU kernels would cost more.
    """
    return keep(wide(token_level_rewards), mask).sum(1).double().cpu()


def _grouped(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: GroupIndex
) -> tuple[torch.Tensor, torch.Tensor, Groups]:
    """Return the mask as bool, the score of each episode, and the groups of the episodes."""
    mask = as_mask(response_mask)
    scores = _scores(token_level_rewards, mask)
    return mask, scores, Groups.from_index(index, scores, token_level_rewards.dtype)


def _on_tokens(
    scores: torch.Tensor, mask: torch.Tensor, rewards: torch.Tensor, *, whiten: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Broadcast each episode's score to its tokens; advantages and returns are the same tensor.

    `whiten`: over the tokens of the batch, so that long episodes weigh more.
    """
    dtype = torch.promote_types(rewards.dtype, torch.float32)
    scores = scores.to(mask.device, torch.float64 if whiten else dtype)
    advantages = keep(scores[:, None], mask)
    if whiten:
        advantages = masked_whiten(advantages, mask).to(dtype)
    return advantages, advantages
