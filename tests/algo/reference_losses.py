"""Slow references in plain Python: policy losses.

`held` stands for the log-probs inside a stop-gradient. They equal `log_probs` in value; finite
differences move `log_probs` and leave `held` where it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from algo.reference_tokens import (
    Mask,
    Rows,
    aggregate_loss,
    masked_mean,
    mean,
    on_tokens,
    policy_tokens,
)

Result = tuple[float, dict[str, float]]
TokenNumber = Callable[[int, int], float]


def clip(x: float, low: float, high: float) -> float:
    return max(low, min(high, x))


def finish(
    mask: Mask, loss: TokenNumber, metrics: dict[str, TokenNumber], options: dict[str, Any]
) -> Result:
    """Weigh and aggregate the token losses, average the metrics."""
    weights = options.get("importance_weights")
    losses = on_tokens(mask, lambda i, t: loss(i, t) * (weights[i][t] if weights else 1.0))
    total = aggregate_loss(losses, mask, options["loss_agg_mode"], options.get("totals"))
    return total, {name: masked_mean(on_tokens(mask, x), mask) for name, x in metrics.items()}


def _clip_range(both: float, low: float | None, high: float | None) -> tuple[float, float]:
    return (both if low is None else low), (both if high is None else high)


def compute_policy_loss(
    old_log_probs: Rows,
    log_probs: Rows,
    advantages: Rows,
    response_mask: Mask,
    clip_ratio: float = 0.2,
    clip_ratio_low: float | None = None,
    clip_ratio_high: float | None = None,
    clip_ratio_c: float = 3.0,
    held: Rows | None = None,
    loss_agg_mode: str = "token-mean",
    **options: Any,
) -> Result:
    low, high = _clip_range(clip_ratio, clip_ratio_low, clip_ratio_high)

    def log_r(i: int, t: int) -> float:
        return clip(log_probs[i][t] - old_log_probs[i][t], -20, 20)

    def parts(i: int, t: int) -> tuple[float, float, float]:
        r, a = math.exp(log_r(i, t)), advantages[i][t]
        plain, clipped = r * a, clip(r, 1 - low, 1 + high) * a
        return plain, clipped, min(plain, clipped)

    def loss(i: int, t: int) -> float:
        a, objective = advantages[i][t], parts(i, t)[2]
        return -max(objective, clip_ratio_c * a) if a < 0 else -objective

    metrics: dict[str, TokenNumber] = {
        "clip_fraction": lambda i, t: parts(i, t)[1] < parts(i, t)[0],
        "clip_fraction_lower": lambda i, t: (
            advantages[i][t] < 0 and parts(i, t)[2] < clip_ratio_c * advantages[i][t]
        ),
        "kl": lambda i, t: -log_r(i, t),
        "ratio": lambda i, t: math.exp(log_r(i, t)),
    }
    return finish(response_mask, loss, metrics, {"loss_agg_mode": loss_agg_mode, **options})


def compute_ppo_loss(
    old_log_probs: Rows,
    new_log_probs: Rows,
    advantages: Rows,
    response_mask: Mask,
    config: Any = None,
) -> Result:
    clip_ratio = 0.2 if config is None else config["clip_ratio"]
    return compute_policy_loss(old_log_probs, new_log_probs, advantages, response_mask, clip_ratio)


def compute_gspo_loss(
    old_log_probs: Rows,
    log_probs: Rows,
    advantages: Rows,
    response_mask: Mask,
    clip_ratio: float = 0.2,
    clip_ratio_low: float | None = None,
    clip_ratio_high: float | None = None,
    held: Rows | None = None,
    loss_agg_mode: str = "seq-mean-token-mean",
    **options: Any,
) -> Result:
    low, high = _clip_range(clip_ratio, clip_ratio_low, clip_ratio_high)
    fixed = held or log_probs

    def ratio(i: int, t: int) -> float:
        places = policy_tokens(response_mask[i])
        sequence = math.exp(mean([fixed[i][s] - old_log_probs[i][s] for s in places]))
        return sequence * math.exp(log_probs[i][t]) / math.exp(fixed[i][t])

    def objectives(i: int, t: int) -> tuple[float, float]:
        s, a = ratio(i, t), advantages[i][t]
        return s * a, clip(s, 1 - low, 1 + high) * a

    metrics: dict[str, TokenNumber] = {
        "clip_fraction": lambda i, t: objectives(i, t)[1] < objectives(i, t)[0],
        "kl": lambda i, t: old_log_probs[i][t] - log_probs[i][t],
        "ratio": ratio,
    }
    return finish(
        response_mask,
        lambda i, t: -min(objectives(i, t)),
        metrics,
        {"loss_agg_mode": loss_agg_mode, **options},
    )


def compute_geo_mean_loss(
    old_log_probs: Rows,
    log_probs: Rows,
    advantages: Rows,
    response_mask: Mask,
    clip_ratio: float = 0.4,
    clip_ratio_low: float | None = None,
    clip_ratio_high: float | None = None,
    held: Rows | None = None,
    loss_agg_mode: str = "seq-mean-token-mean",
    **options: Any,
) -> Result:
    low, high = _clip_range(clip_ratio, clip_ratio_low, clip_ratio_high)

    def log_r(i: int, t: int) -> float:
        return log_probs[i][t] - old_log_probs[i][t]

    def bounded(i: int, t: int) -> float:
        """A > 0 pushes up, so only the upper bound holds; A < 0 the other way round."""
        if advantages[i][t] > 0:
            return min(log_r(i, t), high)
        return max(log_r(i, t), -low)

    def row_ratio(i: int, t: int) -> float:
        return math.exp(mean([bounded(i, s) for s in policy_tokens(response_mask[i])]))

    def loss(i: int, t: int) -> float:
        advantage = mean([advantages[i][s] for s in policy_tokens(response_mask[i])])
        return -advantage * row_ratio(i, t)

    metrics: dict[str, TokenNumber] = {
        "clip_fraction": lambda i, t: advantages[i][t] > 0 and log_r(i, t) > high,
        "clip_fraction_lower": lambda i, t: advantages[i][t] < 0 and log_r(i, t) < -low,
        "kl": lambda i, t: -log_r(i, t),
        "ratio": row_ratio,
    }
    if options.get("importance_weights"):
        options["importance_weights"] = [
            [math.exp(mean([math.log(weights[t]) for t in policy_tokens(row)]))] * len(row)
            for weights, row in zip(options["importance_weights"], response_mask, strict=True)
        ]
    return finish(response_mask, loss, metrics, {"loss_agg_mode": loss_agg_mode, **options})


def compute_sapo_loss(
    old_log_probs: Rows,
    log_probs: Rows,
    advantages: Rows,
    response_mask: Mask,
    tau_pos: float = 1.0,
    tau_neg: float = 1.05,
    held: Rows | None = None,
    loss_agg_mode: str = "seq-mean-token-mean",
    **options: Any,
) -> Result:
    def log_r(i: int, t: int) -> float:
        return clip(log_probs[i][t] - old_log_probs[i][t], -20, 20)

    def loss(i: int, t: int) -> float:
        a = advantages[i][t]
        tau = tau_pos if a > 0 else tau_neg
        gate = 1 / (1 + math.exp(-min(tau * (math.exp(log_r(i, t)) - 1), 700)))
        return -4 / tau * gate * a

    metrics: dict[str, TokenNumber] = {
        "kl": lambda i, t: -log_r(i, t),
        "ratio": lambda i, t: math.exp(log_r(i, t)),
    }
    return finish(response_mask, loss, metrics, {"loss_agg_mode": loss_agg_mode, **options})


def compute_reinforce_loss(
    old_log_probs: Rows,
    log_probs: Rows,
    advantages: Rows,
    response_mask: Mask,
    held: Rows | None = None,
    loss_agg_mode: str = "seq-mean-token-sum",
    **options: Any,
) -> Result:
    return finish(
        response_mask,
        lambda i, t: -advantages[i][t] * log_probs[i][t],
        {"kl": lambda i, t: old_log_probs[i][t] - log_probs[i][t]},
        {"loss_agg_mode": loss_agg_mode, **options},
    )


def compute_gpg_loss(
    old_log_probs: Rows,
    log_probs: Rows,
    advantages: Rows,
    response_mask: Mask,
    held: Rows | None = None,
    loss_agg_mode: str = "token-mean",
    **options: Any,
) -> Result:
    return compute_reinforce_loss(
        old_log_probs,
        log_probs,
        advantages,
        response_mask,
        loss_agg_mode=loss_agg_mode,
        **options,
    )


def compute_cispo_loss(
    old_log_probs: Rows,
    log_probs: Rows,
    advantages: Rows,
    response_mask: Mask,
    clip_ratio: float = 0.2,
    clip_ratio_low: float | None = None,
    clip_ratio_high: float | None = None,
    held: Rows | None = None,
    loss_agg_mode: str = "token-mean",
    **options: Any,
) -> Result:
    low, high = _clip_range(clip_ratio, clip_ratio_low, clip_ratio_high)

    def ratio(i: int, t: int) -> float:
        return math.exp(clip((held or log_probs)[i][t] - old_log_probs[i][t], -20, 20))

    def loss(i: int, t: int) -> float:
        return -clip(ratio(i, t), 1 - low, 1 + high) * advantages[i][t] * log_probs[i][t]

    metrics: dict[str, TokenNumber] = {
        "clip_fraction": lambda i, t: not 1 - low <= ratio(i, t) <= 1 + high,
        "kl": lambda i, t: -math.log(ratio(i, t)),
        "ratio": ratio,
    }
    return finish(response_mask, loss, metrics, {"loss_agg_mode": loss_agg_mode, **options})


def compute_dppo_tv_loss(
    old_log_probs: Rows,
    log_probs: Rows,
    advantages: Rows,
    response_mask: Mask,
    clip_ratio: float = 0.2,
    clip_ratio_low: float | None = None,
    clip_ratio_high: float | None = None,
    clip_ratio_c: float = 20.0,
    held: Rows | None = None,
    loss_agg_mode: str = "token-mean",
    **options: Any,
) -> Result:
    low, high = _clip_range(clip_ratio, clip_ratio_low, clip_ratio_high)

    def is_inside(new: float, old: float, advantage: float) -> bool:
        return new - old <= high if advantage > 0 else new - old >= -low

    return _dppo(
        is_inside,
        clip_ratio_c,
        old_log_probs,
        log_probs,
        held or log_probs,
        advantages,
        response_mask,
        {"loss_agg_mode": loss_agg_mode, **options},
    )


def compute_dppo_kl_loss(
    old_log_probs: Rows,
    log_probs: Rows,
    advantages: Rows,
    response_mask: Mask,
    clip_ratio: float = 0.2,
    clip_ratio_low: float | None = None,
    clip_ratio_high: float | None = None,
    clip_ratio_c: float = 20.0,
    held: Rows | None = None,
    loss_agg_mode: str = "token-mean",
    **options: Any,
) -> Result:
    low, high = _clip_range(clip_ratio, clip_ratio_low, clip_ratio_high)

    def is_inside(new: float, old: float, advantage: float) -> bool:
        divergence = old * math.log(old / new) + (1 - old) * math.log((1 - old) / (1 - new))
        if advantage > 0:
            return new <= old or divergence <= high
        return new >= old or divergence <= low

    return _dppo(
        is_inside,
        clip_ratio_c,
        old_log_probs,
        log_probs,
        held or log_probs,
        advantages,
        response_mask,
        {"loss_agg_mode": loss_agg_mode, **options},
    )


def _dppo(
    is_inside: Callable[[float, float, float], bool],
    bound: float,
    old_log_probs: Rows,
    log_probs: Rows,
    held: Rows,
    advantages: Rows,
    mask: Mask,
    options: dict[str, Any],
) -> Result:
    def inside(i: int, t: int) -> bool:
        return is_inside(math.exp(held[i][t]), math.exp(old_log_probs[i][t]), advantages[i][t])

    def ratio(i: int, t: int) -> float:
        return math.exp(held[i][t] - old_log_probs[i][t])

    def loss(i: int, t: int) -> float:
        return -min(ratio(i, t), bound) * advantages[i][t] * log_probs[i][t] * inside(i, t)

    metrics: dict[str, TokenNumber] = {
        "clip_fraction": lambda i, t: not inside(i, t),
        "kl": lambda i, t: -math.log(ratio(i, t)),
        "ratio": ratio,
    }
    return finish(mask, loss, metrics, options)
