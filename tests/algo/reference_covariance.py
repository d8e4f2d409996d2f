"""Slow references in plain Python: the losses that pick tokens by covariance."""

from __future__ import annotations

import math
from typing import Any

from algo.reference_losses import Result, TokenNumber, clip, finish
from algo.reference_tokens import Mask, Rows, all_tokens, masked_mean, on_tokens


def covariances(log_probs: Rows, advantages: Rows, mask: Mask) -> Rows:
    """(log π − mean) (A − mean) of each token."""
    middle, centre = masked_mean(log_probs, mask), masked_mean(advantages, mask)
    return on_tokens(mask, lambda i, t: (log_probs[i][t] - middle) * (advantages[i][t] - centre))


def clip_cov_candidates(
    old_log_probs: Rows,
    log_probs: Rows,
    advantages: Rows,
    response_mask: Mask,
    clip_ratio: float,
    clip_cov_lower: float,
    clip_cov_upper: float,
) -> list[tuple[int, int]]:
    """The tokens from which Clip-Cov draws."""
    covariance = covariances(log_probs, advantages, response_mask)

    def is_clipped(i: int, t: int) -> bool:
        r, a = math.exp(log_probs[i][t] - old_log_probs[i][t]), advantages[i][t]
        return clip(r, 1 - clip_ratio, 1 + clip_ratio) * a < r * a

    return [
        (i, t)
        for i, t in all_tokens(response_mask)
        if clip_cov_lower < covariance[i][t] < clip_cov_upper and not is_clipped(i, t)
    ]


def compute_clip_cov_loss(
    old_log_probs: Rows,
    log_probs: Rows,
    advantages: Rows,
    response_mask: Mask,
    clip_ratio: float = 0.2,
    clip_cov_ratio: float = 0.0002,
    clip_cov_lower: float = 1.0,
    clip_cov_upper: float = 5.0,
    held: Rows | None = None,
    loss_agg_mode: str = "token-mean",
    **options: Any,
) -> Result:
    """Only where no draw is needed: when all candidates are dropped."""
    candidates = clip_cov_candidates(
        old_log_probs,
        held or log_probs,
        advantages,
        response_mask,
        clip_ratio,
        clip_cov_lower,
        clip_cov_upper,
    )
    num_tokens = len(list(all_tokens(response_mask)))
    assert len(candidates) <= max(1, int(clip_cov_ratio * num_tokens))

    def ratio(i: int, t: int) -> float:
        return math.exp(log_probs[i][t] - old_log_probs[i][t])

    def objectives(i: int, t: int) -> tuple[float, float]:
        r, a = ratio(i, t), advantages[i][t]
        return r * a, clip(r, 1 - clip_ratio, 1 + clip_ratio) * a

    metrics: dict[str, TokenNumber] = {
        "clip_fraction": lambda i, t: objectives(i, t)[1] < objectives(i, t)[0],
        "cov_fraction": lambda i, t: (i, t) in candidates,
        "kl": lambda i, t: old_log_probs[i][t] - log_probs[i][t],
        "ratio": ratio,
    }
    return finish(
        response_mask,
        lambda i, t: 0.0 if (i, t) in candidates else -min(objectives(i, t)),
        metrics,
        {"loss_agg_mode": loss_agg_mode, **options},
    )


def compute_kl_cov_loss(
    old_log_probs: Rows,
    log_probs: Rows,
    advantages: Rows,
    response_mask: Mask,
    kl_cov_ratio: float = 0.0002,
    kl_cov_coef: float = 1.0,
    held: Rows | None = None,
    loss_agg_mode: str = "token-mean",
    **options: Any,
) -> Result:
    covariance = covariances(held or log_probs, advantages, response_mask)
    tokens = sorted(all_tokens(response_mask), key=lambda it: -covariance[it[0]][it[1]])
    top = tokens[: max(1, int(kl_cov_ratio * len(tokens)))]

    def log_r(i: int, t: int) -> float:
        return log_probs[i][t] - old_log_probs[i][t]

    def loss(i: int, t: int) -> float:
        penalty = kl_cov_coef * abs(log_r(i, t)) if (i, t) in top else 0.0
        return -advantages[i][t] * math.exp(log_r(i, t)) + penalty

    metrics: dict[str, TokenNumber] = {
        "cov_fraction": lambda i, t: (i, t) in top,
        "kl": lambda i, t: -log_r(i, t),
        "ratio": lambda i, t: math.exp(log_r(i, t)),
    }
    return finish(response_mask, loss, metrics, {"loss_agg_mode": loss_agg_mode, **options})
