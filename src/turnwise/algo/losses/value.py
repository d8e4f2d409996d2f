"""The critic's loss, and entropy."""

from __future__ import annotations

import torch

from turnwise.algo.losses.policy import share
from turnwise.algo.losses.tiled import Metrics, tiled_loss
from turnwise.algo.masked import BatchTotals, LossAggregation, aggregate_loss, as_mask, keep


def compute_value_loss(
    vpreds: torch.Tensor,
    returns: torch.Tensor,
    old_values: torch.Tensor,
    response_mask: torch.Tensor,
    cliprange_value: float = 0.2,
    *,
    loss_agg_mode: LossAggregation = "token-mean",
    totals: BatchTotals | None = None,
) -> tuple[torch.Tensor, Metrics]:
    """PPO's clipped value loss (https://arxiv.org/abs/1707.06347; Engstrom et al., 2005.12729).

        L = ½ max((V − R)², (clip(V, V_old ± c) − R)²)

    Metrics: `value_clip_fraction`, `value_mean`, `return_mean`, and `explained_variance`, which is
    1 − Var(R − V) / Var(R): 1 is a perfect critic, 0 one that knows only the mean.
    """

    def token_loss(
        values: torch.Tensor, returns: torch.Tensor, old_values: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, Metrics]:
        moved = values.clamp(old_values - cliprange_value, old_values + cliprange_value)
        plain, clipped = (values - returns).square(), (moved - returns).square()
        metrics = {
            "value_clip_fraction": share(clipped > plain),
            "value_mean": values,
            "return_mean": returns,
        }
        return 0.5 * torch.maximum(plain, clipped), metrics

    loss, metrics = tiled_loss(
        token_loss, vpreds, (returns, old_values), response_mask, loss_agg_mode, totals
    )
    metrics["explained_variance"] = explained_variance(vpreds, returns, response_mask)
    return loss, metrics


@torch.no_grad()
def explained_variance(
    values: torch.Tensor, returns: torch.Tensor, response_mask: torch.Tensor
) -> torch.Tensor:
    """1 − Var(R − V) / Var(R) over the policy's tokens; 0 where the returns do not vary."""
    mask = as_mask(response_mask)
    count = mask.sum().clamp(min=1)

    def spread(x: torch.Tensor) -> torch.Tensor:
        mean = keep(x, mask).sum() / count
        return keep(x - mean, mask).square().sum()

    total = spread(returns)
    return torch.where(total > 0, 1.0 - spread(returns - values) / total, 0.0)


def entropy_from_logits(logits: torch.Tensor) -> torch.Tensor:
    """Entropy of each distribution: [..., V] -> [...]. H = log Σ e^z − Σ p z."""
    probabilities = logits.softmax(-1)
    return logits.logsumexp(-1) - (probabilities * logits).sum(-1)


def compute_entropy_loss(
    logits: torch.Tensor,
    response_mask: torch.Tensor,
    *,
    loss_agg_mode: LossAggregation = "token-mean",
    totals: BatchTotals | None = None,
) -> torch.Tensor:
    """Entropy of logits [B, T, V] over the policy's tokens; subtract it to keep it up."""
    return aggregate_loss(entropy_from_logits(logits), response_mask, loss_agg_mode, totals)
