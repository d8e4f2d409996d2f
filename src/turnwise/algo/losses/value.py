"""The critic's loss."""

import torch

from turnwise.algo.losses.policy import is_above
from turnwise.algo.masked import (
    BatchTotals,
    TensorMetrics,
    aggregate_loss,
    as_mask,
    keep,
    masked_mean,
    wide,
)
from turnwise.config.sections import LossAggregation


def compute_value_loss(
    vpreds: torch.Tensor,
    returns: torch.Tensor,
    old_values: torch.Tensor,
    response_mask: torch.Tensor,
    cliprange_value: float = 0.2,
    *,
    loss_agg_mode: LossAggregation = "token-mean",
    totals: BatchTotals | None = None,
) -> tuple[torch.Tensor, TensorMetrics]:
    """PPO's clipped value loss (https://arxiv.org/abs/1707.06347; Engstrom et al., 2005.12729).

        L = ½ max((V − R)², (clip(V, V_old ± c) − R)²)

    Metrics: `value_clip_fraction`, `value_mean`, `return_mean`, and `explained_variance`, which is
    1 − Var(R − V) / Var(R): 1 is a perfect critic, 0 one that predicts only the mean.
    """
    mask = as_mask(response_mask)
    values = torch.where(mask, wide(vpreds), 0.0)
    targets = keep(returns.to(values.dtype), mask)
    before = keep(old_values.to(values.dtype), mask)
    near = values.clamp(before - cliprange_value, before + cliprange_value)
    unclipped = (values - targets).square()
    clipped = (near - targets).square()
    by_token = {
        "value_clip_fraction": is_above(clipped, unclipped),
        "value_mean": values,
        "return_mean": targets,
    }
    metrics = {name: masked_mean(x.detach(), mask) for name, x in by_token.items()}
    metrics["explained_variance"] = explained_variance(vpreds, returns, mask)
    losses = 0.5 * torch.maximum(unclipped, clipped)
    return aggregate_loss(losses, mask, loss_agg_mode, totals), metrics


@torch.no_grad()
def explained_variance(
    values: torch.Tensor, returns: torch.Tensor, response_mask: torch.Tensor
) -> torch.Tensor:
    """1 − Var(R − V) / Var(R) over the policy's tokens; 0 where the returns do not vary."""
    mask = as_mask(response_mask)
    count = mask.sum().clamp(min=1)

    def sum_of_squares(x: torch.Tensor) -> torch.Tensor:
        mean = x.sum() / count
        return keep(x - mean, mask).square().sum()

    values, returns = keep(values.double(), mask), keep(returns.double(), mask)
    total = sum_of_squares(returns)
    # Of equal returns only rounding remains.
    varies = total > 1e-12 * returns.square().sum()
    return torch.where(varies, 1.0 - sum_of_squares(returns - values) / total, 0.0)
