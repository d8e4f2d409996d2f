"""Slow references in plain Python: the losses that pick tokens by covariance."""

from __future__ import annotations

import math
from typing import Any

from algo.reference_losses import Result, TokenNumber, Tokens, clip
from algo.reference_tokens import Mask, Rows, all_tokens, masked_mean, on_tokens


def covariances(log_probs: Rows, advantages: Rows, mask: Mask) -> Rows:
    """(log π − mean) (A − mean) of each token."""
    middle, centre = masked_mean(log_probs, mask), masked_mean(advantages, mask)
    return on_tokens(mask, lambda i, t: (log_probs[i][t] - middle) * (advantages[i][t] - centre))


def clip_cov_candidates(
    clip_ratio: float, clip_cov_lower: float, clip_cov_upper: float, **given: Any
) -> list[tuple[int, int]]:
    """The tokens from which Clip-Cov draws."""
    b = Tokens(**given)
    covariance = covariances(b.held, b.advantages, b.mask)

    def is_clipped(i: int, t: int) -> bool:
        r, a = math.exp(b.held[i][t] - b.old[i][t]), b.advantages[i][t]
        return clip(r, 1 - clip_ratio, 1 + clip_ratio) * a < r * a

    return [
        (i, t)
        for i, t in all_tokens(b.mask)
        if clip_cov_lower < covariance[i][t] < clip_cov_upper and not is_clipped(i, t)
    ]


def compute_clip_cov_loss(
    clip_cov_lower: float, clip_cov_upper: float, clip_cov_ratio: float, **given: Any
) -> Result:
    """Only where no draw is needed: when all candidates are dropped."""
    b = Tokens(**given)
    candidates = clip_cov_candidates(0.2, clip_cov_lower, clip_cov_upper, **given)
    num_tokens = len(list(all_tokens(b.mask)))
    assert len(candidates) <= max(1, int(clip_cov_ratio * num_tokens))

    def ratio(i: int, t: int) -> float:
        return math.exp(b.log_ratio(i, t))

    def objectives(i: int, t: int) -> tuple[float, float]:
        r, a = ratio(i, t), b.advantages[i][t]
        return r * a, clip(r, 0.8, 1.2) * a

    metrics: dict[str, TokenNumber] = {
        "clip_fraction": lambda i, t: objectives(i, t)[1] < objectives(i, t)[0],
        "cov_fraction": lambda i, t: (i, t) in candidates,
        "kl": lambda i, t: -b.log_ratio(i, t),
        "ratio": ratio,
    }
    return b.finish(
        "token-mean",
        lambda i, t: 0.0 if (i, t) in candidates else -min(objectives(i, t)),
        metrics,
    )


def compute_kl_cov_loss(
    kl_cov_ratio: float = 0.0002, kl_cov_coef: float = 1.0, **given: Any
) -> Result:
    b = Tokens(**given)
    covariance = covariances(b.held, b.advantages, b.mask)
    tokens = sorted(all_tokens(b.mask), key=lambda it: -covariance[it[0]][it[1]])
    top = tokens[: max(1, int(kl_cov_ratio * len(tokens)))]

    def loss(i: int, t: int) -> float:
        penalty = kl_cov_coef * abs(b.log_ratio(i, t)) if (i, t) in top else 0.0
        return -b.advantages[i][t] * math.exp(b.log_ratio(i, t)) + penalty

    metrics: dict[str, TokenNumber] = {
        "cov_fraction": lambda i, t: (i, t) in top,
        "kl": lambda i, t: -b.log_ratio(i, t),
        "ratio": lambda i, t: math.exp(b.log_ratio(i, t)),
    }
    return b.finish("token-mean", loss, metrics)
