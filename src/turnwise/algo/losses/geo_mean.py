"""GMPO: the geometric mean of the token ratios."""

from __future__ import annotations

from typing import Unpack

import torch

from turnwise.algo.losses.policy import LossOptions, clip_range, is_above, policy_loss
from turnwise.algo.masked import as_mask, keep
from turnwise.algo.types import Metrics, TokenTerms


def compute_geo_mean_loss(
    old_log_probs: torch.Tensor,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    clip_ratio: float = 0.4,
    *,
    clip_ratio_low: float | None = None,
    clip_ratio_high: float | None = None,
    **options: Unpack[LossOptions],
) -> tuple[torch.Tensor, Metrics]:
    """GMPO (Zhao et al., https://arxiv.org/abs/2507.20673).

        L_i = −A_i · exp(mean_t c_it),   c = log r clipped to [−ε_low, ε_high] on the side that A
                                         would push it over

    A_i is the mean advantage of the row: the method is for one advantage a sequence. The range is
    that of log r. Sequences are averaged; rows without a token do not count (VERL counts them).
    Importance weights enter as their geometric mean over the row, too.
    """
    weights = options.get("importance_weights")
    if weights is not None:
        mask = as_mask(response_mask)
        logs = keep((weights.detach() + 1e-10).log(), mask)
        mean = logs.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
        options["importance_weights"] = mean.exp().expand_as(weights)
    low, high = clip_range(clip_ratio, clip_ratio_low, clip_ratio_high)

    def token_loss(
        log_probs: torch.Tensor,
        old_log_probs: torch.Tensor,
        advantages: torch.Tensor,
        mask: torch.Tensor,
    ) -> TokenTerms:
        log_r = log_probs - old_log_probs
        clamped = log_r.clamp(-low, high)
        sign = advantages.sign()
        cut_high = is_above(log_r, high) * is_above(advantages, 0.0)
        cut_low = is_above(-log_r, low) * is_above(-advantages, 0.0)
        pessimistic = sign * torch.minimum(sign * log_r, sign * clamped)
        lengths = mask.sum(1, keepdim=True).clamp(min=1)
        ratio = (pessimistic.sum(1, keepdim=True) / lengths).exp()
        advantage = advantages.sum(1, keepdim=True) / lengths
        # On each token the row's loss: averaging over the row gives it back.
        losses = (-advantage * ratio).expand_as(mask)
        metrics = {
            "clip_fraction": cut_high,
            "clip_fraction_lower": cut_low,
            "kl": -log_r,
            "ratio": ratio.expand_as(mask),
        }
        return TokenTerms(losses, metrics)

    return policy_loss(
        token_loss,
        old_log_probs,
        log_probs,
        advantages,
        response_mask,
        options,
        default_mode="seq-mean-token-mean",
    )
