"""Slow references in plain Python: advantages of tokens, episodes and turns."""

import math
from typing import Any

from algo.reference_tokens import (
    Mask,
    Row,
    Rows,
    discounted_suffix_sum,
    mean,
    on_tokens,
    policy_tokens,
    std,
    whitened,
)

Pair = tuple[Rows, Rows]


def _generalised_advantages(
    rewards: Row, values: Row, after: float, gamma: float, lam: float
) -> Row:
    """Of one row of steps; `after` is the value of what follows the last one."""
    errors = [
        r + gamma * following - v
        for r, v, following in zip(rewards, values, [*values, after][1:], strict=True)
    ]
    advantages: Row = []
    for error in reversed(errors):
        advantages.insert(0, error + gamma * lam * (advantages[0] if advantages else 0.0))
    return advantages


def compute_gae_advantage_return(
    token_level_rewards: Rows,
    values: Rows,
    response_mask: Mask,
    gamma: float,
    lam: float,
    bootstrap_values: Row | None = None,
    whiten: bool = True,
) -> Pair:
    advantages = on_tokens(response_mask, lambda i, t: 0.0)
    for i, row in enumerate(response_mask):
        tokens = policy_tokens(row)
        found = _generalised_advantages(
            [token_level_rewards[i][t] for t in tokens],
            [values[i][t] for t in tokens],
            bootstrap_values[i] if bootstrap_values else 0.0,
            gamma,
            lam,
        )
        for t, advantage in zip(tokens, found, strict=True):
            advantages[i][t] = advantage
    returns = on_tokens(response_mask, lambda i, t: advantages[i][t] + values[i][t])
    return (whitened(advantages, response_mask) if whiten else advantages), returns


def estimate_advantages(rewards: Rows, values: Rows, dones: Mask, gamma: float, lam: float) -> Pair:
    advantages = [[0.0] * len(row) for row in rewards]
    for i, row in enumerate(rewards):
        for t in reversed(range(len(row))):
            goes_on = t + 1 < len(row) and not dones[i][t]
            following = values[i][t + 1] if goes_on else 0.0
            later = advantages[i][t + 1] if goes_on else 0.0
            advantages[i][t] = row[t] + gamma * following - values[i][t] + gamma * lam * later
    returns = [
        [a + v for a, v in zip(*rows, strict=True)] for rows in zip(advantages, values, strict=True)
    ]
    return advantages, returns


def _scores(rewards: Rows, mask: Mask) -> Row:
    return [math.fsum(rewards[i][t] for t in policy_tokens(row)) for i, row in enumerate(mask)]


def _mates(index: list[Any], i: int) -> list[int]:
    """The episodes of i's group, i included."""
    return [j for j, label in enumerate(index) if label == index[i]]


def _normalised(x: Row, index: list[Any], norm_by_std: bool, epsilon: float) -> Row:
    def one(i: int) -> float:
        group = [x[j] for j in _mates(index, i)]
        if len(group) == 1:
            return 0.0
        return (x[i] - mean(group)) / (std(group) + epsilon if norm_by_std else 1.0)

    return [one(i) for i in range(len(x))]


def _spread(x: Row, mask: Mask) -> Pair:
    on_each = on_tokens(mask, lambda i, t: x[i])
    return on_each, on_each


def compute_grpo_advantage(
    token_level_rewards: Rows,
    response_mask: Mask,
    index: list[Any],
    norm_by_std: bool = True,
    epsilon: float = 1e-6,
) -> Pair:
    scores = _scores(token_level_rewards, response_mask)
    return _spread(_normalised(scores, index, norm_by_std, epsilon), response_mask)


def compute_dr_grpo_advantage(
    token_level_rewards: Rows, response_mask: Mask, index: list[Any]
) -> Pair:
    scores = _scores(token_level_rewards, response_mask)
    return _spread(_normalised(scores, index, False, 0.0), response_mask)


def compute_grpo_passk_advantage(
    token_level_rewards: Rows,
    response_mask: Mask,
    index: list[Any],
    norm_by_std: bool = True,
    epsilon: float = 1e-6,
) -> Pair:
    scores = _scores(token_level_rewards, response_mask)
    result = [0.0] * len(scores)
    for label in set(index):
        group = [i for i, other in enumerate(index) if other == label]
        ranked = sorted((scores[i] for i in group), reverse=True)
        best = next(i for i in group if scores[i] == ranked[0])
        spread = std(ranked) + epsilon if norm_by_std else 1.0
        result[best] = (ranked[0] - ranked[1]) / spread
    return _spread(result, response_mask)


def compute_gdpo_advantage(
    token_level_rewards: Rows,
    response_mask: Mask,
    index: list[Any],
    reward_parts: Rows | None = None,
    part_weights: list[float] | None = None,
    norm_by_std: bool = True,
    epsilon: float = 1e-6,
) -> Pair:
    parts = reward_parts or [[s] for s in _scores(token_level_rewards, response_mask)]
    total = [0.0] * len(parts)
    for k in range(len(parts[0])):
        weight = part_weights[k] if part_weights else 1.0
        part = _normalised([row[k] for row in parts], index, norm_by_std, epsilon)
        total = [a + weight * b for a, b in zip(total, part, strict=True)]
    advantages = whitened(_spread(total, response_mask)[0], response_mask)
    return advantages, advantages


def compute_rloo_advantage(
    token_level_rewards: Rows, response_mask: Mask, index: list[Any]
) -> Pair:
    scores = _scores(token_level_rewards, response_mask)

    def one(i: int) -> float:
        others = [scores[j] for j in _mates(index, i) if j != i]
        return scores[i] - mean(others) if others else 0.0

    return _spread([one(i) for i in range(len(scores))], response_mask)


def compute_opo_advantage(token_level_rewards: Rows, response_mask: Mask, index: list[Any]) -> Pair:
    scores = _scores(token_level_rewards, response_mask)
    lengths = [len(policy_tokens(row)) for row in response_mask]

    def one(i: int) -> float:
        mates = _mates(index, i)
        total = sum(lengths[j] for j in mates)
        if len(mates) == 1 or total == 0:
            return 0.0
        return scores[i] - math.fsum(lengths[j] * scores[j] for j in mates) / total

    return _spread([one(i) for i in range(len(scores))], response_mask)


def compute_gpg_advantage(
    token_level_rewards: Rows, response_mask: Mask, index: list[Any], f_norm: float = 1.0
) -> Pair:
    scores = _scores(token_level_rewards, response_mask)
    alpha = len(scores) / max(1, sum(s != 0 for s in scores))
    centred = _normalised(scores, index, False, 0.0)
    return _spread([alpha * c / f_norm for c in centred], response_mask)


def compute_reinforce_plus_plus_advantage(
    token_level_rewards: Rows, response_mask: Mask, gamma: float = 1.0
) -> Pair:
    returns = discounted_suffix_sum(token_level_rewards, response_mask, gamma)
    return whitened(returns, response_mask), returns


def compute_reinforce_plus_plus_baseline_advantage(
    token_level_rewards: Rows, response_mask: Mask, index: list[Any]
) -> Pair:
    centred = compute_dr_grpo_advantage(token_level_rewards, response_mask, index)[0]
    advantages = whitened(centred, response_mask)
    return advantages, advantages


def compute_remax_advantage(
    token_level_rewards: Rows, response_mask: Mask, reward_baselines: Row
) -> Pair:
    returns = discounted_suffix_sum(token_level_rewards, response_mask, 1.0)
    return on_tokens(response_mask, lambda i, t: returns[i][t] - reward_baselines[i]), returns


def compute_optimal_token_baseline_advantage(
    token_level_rewards: Rows,
    response_mask: Mask,
    index: list[Any],
    old_log_probs: Rows,
    sum_pi_squared: Rows,
    handle_zero_tail: bool = True,
    epsilon: float = 1e-8,
) -> Pair:
    returns = discounted_suffix_sum(token_level_rewards, response_mask, 1.0)
    places = [policy_tokens(row) for row in response_mask]

    def path_energy(i: int, k: int) -> float:
        """Up to the k-th policy token, that one included."""
        return math.fsum(
            1 - 2 * math.exp(old_log_probs[i][t]) + sum_pi_squared[i][t] for t in places[i][: k + 1]
        )

    def baseline(i: int, k: int) -> float:
        mates = _mates(index, i)
        here = [j for j in mates if len(places[j]) > k]
        if len(mates) == 1 or (handle_zero_tail and here == [i]):
            return 0.0
        weights = [path_energy(j, k) for j in here]
        weighted = math.fsum(
            w * returns[j][places[j][k]] for w, j in zip(weights, here, strict=True)
        )
        return weighted / (math.fsum(weights) + epsilon)

    def advantage(i: int, t: int) -> float:
        return returns[i][t] - baseline(i, places[i].index(t))

    return on_tokens(response_mask, advantage), returns


def turns_of(mask: Mask, turn_ids: list[list[int]] | None) -> list[list[list[int]]]:
    """For each row its turns in order, each the places of its tokens."""
    rows = []
    for i, row in enumerate(mask):
        turns: dict[int, list[int]] = {}
        runs = -1
        for t in policy_tokens(row):
            runs += t == 0 or not row[t - 1]
            turns.setdefault(turn_ids[i][t] if turn_ids else runs, []).append(t)
        rows.append([turns[k] for k in sorted(turns)])
    return rows


def _turn_rewards(rewards: Rows, turns: list[list[list[int]]]) -> Rows:
    return [[math.fsum(rewards[i][t] for t in turn) for turn in row] for i, row in enumerate(turns)]


def _to_go(rewards: Rows, gamma: float) -> Rows:
    return [
        [math.fsum(gamma**j * r for j, r in enumerate(row[k:])) for k in range(len(row))]
        for row in rewards
    ]


def _turns_on_tokens(numbers: Rows, turns: list[list[list[int]]], mask: Mask) -> Rows:
    result = on_tokens(mask, lambda i, t: 0.0)
    for i, row in enumerate(turns):
        for k, turn in enumerate(row):
            for t in turn:
                result[i][t] = numbers[i][k]
    return result


def compute_turn_gae_advantage_return(
    token_level_rewards: Rows,
    values: Rows,
    response_mask: Mask,
    gamma: float,
    lam: float,
    turn_ids: list[list[int]] | None = None,
    bootstrap_values: Row | None = None,
    whiten: bool = True,
) -> Pair:
    turns = turns_of(response_mask, turn_ids)
    before = [[values[i][turn[0]] for turn in row] for i, row in enumerate(turns)]
    rewards = _turn_rewards(token_level_rewards, turns)
    advantages = [
        _generalised_advantages(r, v, bootstrap_values[i] if bootstrap_values else 0.0, gamma, lam)
        for i, (r, v) in enumerate(zip(rewards, before, strict=True))
    ]
    returns = [
        [a + v for a, v in zip(*rows, strict=True)] for rows in zip(advantages, before, strict=True)
    ]
    on_each = _turns_on_tokens(advantages, turns, response_mask)
    return (
        whitened(on_each, response_mask) if whiten else on_each,
        _turns_on_tokens(returns, turns, response_mask),
    )


def compute_turn_grpo_advantage(
    token_level_rewards: Rows,
    response_mask: Mask,
    index: list[Any],
    gamma: float = 1.0,
    turn_ids: list[list[int]] | None = None,
    norm_by_std: bool = False,
    epsilon: float = 1e-6,
) -> Pair:
    turns = turns_of(response_mask, turn_ids)
    to_go = _to_go(_turn_rewards(token_level_rewards, turns), gamma)

    def standing(j: int, k: int) -> float:
        return to_go[j][min(k, len(to_go[j]) - 1)] if to_go[j] else 0.0

    def advantage(i: int, k: int) -> float:
        mates = _mates(index, i)
        if len(mates) == 1:
            return 0.0
        spread = std([standing(j, 0) for j in mates]) + epsilon if norm_by_std else 1.0
        return (to_go[i][k] - mean([standing(j, k) for j in mates if j != i])) / spread

    advantages = [[advantage(i, k) for k in range(len(row))] for i, row in enumerate(to_go)]
    return (
        _turns_on_tokens(advantages, turns, response_mask),
        _turns_on_tokens(to_go, turns, response_mask),
    )


def compute_gigpo_advantage(
    token_level_rewards: Rows,
    response_mask: Mask,
    index: list[Any],
    anchor_states: list[list[Any]],
    gamma: float = 1.0,
    turn_ids: list[list[int]] | None = None,
    step_weight: float = 1.0,
    norm_by_std: bool = True,
    epsilon: float = 1e-6,
) -> Pair:
    turns = turns_of(response_mask, turn_ids)
    rewards = _turn_rewards(token_level_rewards, turns)
    to_go = _to_go(rewards, gamma)
    episode = _normalised([math.fsum(row) for row in rewards], index, norm_by_std, epsilon)

    def step(i: int, k: int) -> float:
        same = [
            to_go[j][m]
            for j in _mates(index, i)
            for m in range(len(to_go[j]))
            if anchor_states[j][m] == anchor_states[i][k]
        ]
        if len(same) == 1:
            return 0.0
        return (to_go[i][k] - mean(same)) / (std(same) + epsilon if norm_by_std else 1.0)

    advantages = [
        [episode[i] + step_weight * step(i, k) for k in range(len(row))]
        for i, row in enumerate(to_go)
    ]
    return (
        _turns_on_tokens(advantages, turns, response_mask),
        _turns_on_tokens(to_go, turns, response_mask),
    )
