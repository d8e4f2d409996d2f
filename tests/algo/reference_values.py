"""Slow references in plain Python: the critic's loss and entropy."""

from __future__ import annotations

import math
from typing import Any

from algo.reference_losses import Result, TokenNumber, clip, finish
from algo.reference_tokens import Mask, Rows, aggregate_loss, all_tokens, mean


def compute_value_loss(
    vpreds: Rows,
    returns: Rows,
    old_values: Rows,
    response_mask: Mask,
    cliprange_value: float = 0.2,
    loss_agg_mode: str = "token-mean",
    totals: Any = None,
) -> Result:
    def errors(i: int, t: int) -> tuple[float, float]:
        v, v_old, r = vpreds[i][t], old_values[i][t], returns[i][t]
        moved = clip(v, v_old - cliprange_value, v_old + cliprange_value)
        return (v - r) ** 2, (moved - r) ** 2

    metrics: dict[str, TokenNumber] = {
        "value_clip_fraction": lambda i, t: errors(i, t)[1] > errors(i, t)[0],
        "value_mean": lambda i, t: vpreds[i][t],
        "return_mean": lambda i, t: returns[i][t],
    }
    options = {"loss_agg_mode": loss_agg_mode, "totals": totals}
    loss, averages = finish(response_mask, lambda i, t: max(errors(i, t)) / 2, metrics, options)
    averages["explained_variance"] = explained_variance(vpreds, returns, response_mask)
    return loss, averages


def explained_variance(values: Rows, returns: Rows, response_mask: Mask) -> float:
    def variance(numbers: list[float]) -> float:
        centre = mean(numbers)
        return mean([(x - centre) ** 2 for x in numbers])

    wanted = [returns[i][t] for i, t in all_tokens(response_mask)]
    missed = [returns[i][t] - values[i][t] for i, t in all_tokens(response_mask)]
    if not wanted or min(wanted) == max(wanted):
        return 0.0
    return 1 - variance(missed) / variance(wanted)


def entropy_of(logits: list[float]) -> float:
    """−Σ p log p, in which an impossible token adds nothing."""
    top = max(logits)
    total = math.fsum(math.exp(z - top) for z in logits)
    shares = [math.exp(z - top) / total for z in logits]
    return -math.fsum(p * math.log(p) for p in shares if p > 0)


def entropy_from_logits(logits: list[Rows]) -> Rows:
    return [[entropy_of(token) for token in row] for row in logits]


def compute_entropy_loss(
    logits: list[Rows],
    response_mask: Mask,
    loss_agg_mode: str = "token-mean",
    totals: Any = None,
) -> float:
    return aggregate_loss(entropy_from_logits(logits), response_mask, loss_agg_mode, totals)
