"""The critic's loss, and entropy."""

from __future__ import annotations

import torch

from turnwise.algo.losses.policy import batch_loss, is_above
from turnwise.algo.masked import BatchTotals, LossAggregation, aggregate_loss, as_mask, keep
from turnwise.algo.types import TensorMetrics, TokenTerms


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

    def token_loss(
        values: torch.Tensor, returns: torch.Tensor, old_values: torch.Tensor, mask: torch.Tensor
    ) -> TokenTerms:
        near = values.clamp(old_values - cliprange_value, old_values + cliprange_value)
        unclipped, clipped = (values - returns).square(), (near - returns).square()
        cut = is_above(clipped, unclipped)
        metrics = {"value_clip_fraction": cut, "value_mean": values, "return_mean": returns}
        return TokenTerms(0.5 * torch.maximum(unclipped, clipped), metrics)

    loss, metrics = batch_loss(
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

    def sum_of_squares(x: torch.Tensor) -> torch.Tensor:
        mean = x.sum() / count
        return keep(x - mean, mask).square().sum()

    values, returns = keep(values.double(), mask), keep(returns.double(), mask)
    total = sum_of_squares(returns)
    # Of equal returns only rounding remains.
    varies = total > 1e-12 * returns.square().sum()
    return torch.where(varies, 1.0 - sum_of_squares(returns - values) / total, 0.0)


def entropy_from_logits(logits: torch.Tensor) -> torch.Tensor:
    """Entropy of each distribution: [..., V] -> [...]. H = −Σ p log p."""
    log_probs = logits.log_softmax(-1)
    # A token that cannot be sampled has log p = −∞ and adds nothing.
    finite = log_probs.clamp(min=torch.finfo(logits.dtype).min)
    return -(log_probs.exp() * finite).sum(-1)


def compute_entropy_loss(
    logits: torch.Tensor,
    response_mask: torch.Tensor,
    *,
    loss_agg_mode: LossAggregation = "token-mean",
    totals: BatchTotals | None = None,
) -> torch.Tensor:
    """Return the entropy of logits [B, T, V] over the policy's tokens, for an entropy bonus."""
    # Masked first, so that masked tokens have no gradient.
    logits = torch.where(as_mask(response_mask)[..., None], logits, 0.0)
    return aggregate_loss(entropy_from_logits(logits), response_mask, loss_agg_mode, totals)
