"""Slow references in plain Python: sums and means over tokens, aggregation, KL, correction.

All take nested lists of numbers and visit the policy's tokens one by one.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

Row = list[float]
Rows = list[list[float]]
Mask = list[list[Any]]


def policy_tokens(mask_row: list[Any]) -> list[int]:
    """Where in the row the policy's tokens stand."""
    return [t for t, is_set in enumerate(mask_row) if is_set]


def all_tokens(mask: Mask) -> Iterator[tuple[int, int]]:
    for i, row in enumerate(mask):
        for t in policy_tokens(row):
            yield i, t


def on_tokens(mask: Mask, number: Callable[[int, int], float]) -> Rows:
    """`number(i, t)` on policy tokens, 0 elsewhere."""
    return [[number(i, t) if m else 0.0 for t, m in enumerate(row)] for i, row in enumerate(mask)]


def mean(numbers: list[float]) -> float:
    return math.fsum(numbers) / len(numbers) if numbers else 0.0


def std(numbers: list[float]) -> float:
    """Unbiased; 0 for a single number."""
    if len(numbers) < 2:
        return 0.0
    centre = mean(numbers)
    return math.sqrt(math.fsum((x - centre) ** 2 for x in numbers) / (len(numbers) - 1))


def masked_mean(x: Rows, mask: Mask) -> float:
    return mean([x[i][t] for i, t in all_tokens(mask)])


def whitened(x: Rows, mask: Mask) -> Rows:
    """(x − mean) / √(variance + 1e-8) over the batch's tokens."""
    numbers = [x[i][t] for i, t in all_tokens(mask)]
    centre, scale = mean(numbers), math.sqrt(std(numbers) ** 2 + 1e-8)
    return on_tokens(mask, lambda i, t: (x[i][t] - centre) / scale)


def discounted_suffix_sum(x: Rows, mask: Mask, decay: float) -> Rows:
    result = on_tokens(mask, lambda i, t: 0.0)
    for i, row in enumerate(mask):
        to_go = 0.0
        for t in reversed(policy_tokens(row)):
            to_go = x[i][t] + decay * to_go
            result[i][t] = to_go
    return result


def aggregate_loss(
    token_losses: Rows, mask: Mask, mode: str = "token-mean", totals: Any = None
) -> float:
    sums = [math.fsum(token_losses[i][t] for t in policy_tokens(row)) for i, row in enumerate(mask)]
    lengths = [len(policy_tokens(row)) for row in mask]
    num_tokens = getattr(totals, "num_tokens", None) or sum(lengths)
    num_sequences = getattr(totals, "num_sequences", None) or sum(n > 0 for n in lengths)
    horizon = getattr(totals, "horizon", None) or len(mask[0])
    if sum(lengths) == 0:
        return 0.0
    if mode == "token-mean":
        return math.fsum(sums) / num_tokens
    if mode == "token-sum":
        return math.fsum(sums)
    if mode == "seq-mean-token-sum":
        return math.fsum(sums) / num_sequences
    if mode == "seq-mean-token-sum-norm":
        return math.fsum(sums) / horizon / num_sequences
    assert mode == "seq-mean-token-mean"
    return math.fsum(s / n for s, n in zip(sums, lengths, strict=True) if n) / num_sequences


def kl_of(difference: float, kind: str) -> float:
    """From d = log π − log ref."""
    bounded = max(-20.0, min(20.0, difference))
    return {
        "k1": difference,
        "k2": difference**2 / 2,
        "k3": min(10.0, math.exp(-bounded) - 1 + bounded),
        "abs": abs(difference),
    }[kind.rstrip("+")]


def estimate_kl(log_probs: Rows, ref_log_probs: Rows, kind: str = "k1") -> Rows:
    return [
        [kl_of(p - q, kind) for p, q in zip(ours, theirs, strict=True)]
        for ours, theirs in zip(log_probs, ref_log_probs, strict=True)
    ]


def compute_kl_penalty(log_probs: Rows, ref_log_probs: Rows, kind: str = "k1") -> Rows:
    return estimate_kl(log_probs, ref_log_probs, kind)


def apply_kl_penalty(
    token_level_rewards: Rows,
    log_probs: Rows,
    ref_log_probs: Rows,
    response_mask: Mask,
    kl_coef: float,
    kind: str = "k1",
) -> tuple[Rows, float]:
    kl = estimate_kl(log_probs, ref_log_probs, kind)
    rewards = [
        [r - kl_coef * kl[i][t] if response_mask[i][t] else r for t, r in enumerate(row)]
        for i, row in enumerate(token_level_rewards)
    ]
    rows = [[kl[i][t] for t in policy_tokens(row)] for i, row in enumerate(response_mask)]
    return rewards, mean([mean(row) for row in rows if row])


def measure_log_prob_gap(
    sampler_log_probs: Rows, log_probs: Rows, response_mask: Mask
) -> dict[str, float]:
    gaps = [log_probs[i][t] - sampler_log_probs[i][t] for i, t in all_tokens(response_mask)]
    return {
        "gap_mean": mean([abs(g) for g in gaps]),
        "gap_max": max((abs(g) for g in gaps), default=0.0),
        "gap_kl": mean([math.exp(g) - 1 - g for g in gaps]),
    }


def compute_importance_weights(
    sampler_log_probs: Rows,
    log_probs: Rows,
    response_mask: Mask,
    level: str = "token",
    bounds: Any = 2.0,
) -> tuple[Rows, dict[str, float]]:
    lower, upper = bounds if isinstance(bounds, tuple) else (None, bounds)

    def ratio(i: int, t: int) -> float:
        places = [t] if level == "token" else policy_tokens(response_mask[i])
        return math.prod(math.exp(log_probs[i][s] - sampler_log_probs[i][s]) for s in places)

    def weight(i: int, t: int) -> float:
        raw = ratio(i, t)
        if lower is None:
            return min(raw, upper)
        return raw if lower <= raw <= upper else 0.0

    def is_beyond(i: int, t: int) -> bool:
        return ratio(i, t) > upper or (lower is not None and ratio(i, t) < lower)

    tokens = list(all_tokens(response_mask))
    weights = [weight(i, t) for i, t in tokens]
    squares = math.fsum(w * w for w in weights)
    metrics = {
        "is_mean": mean(weights),
        "is_max": max((ratio(i, t) for i, t in tokens), default=0.0),
        "is_truncated": mean([float(is_beyond(i, t)) for i, t in tokens]),
        "is_ess": math.fsum(weights) ** 2 / (len(weights) * squares) if squares else 0.0,
    }
    return on_tokens(response_mask, weight), metrics
