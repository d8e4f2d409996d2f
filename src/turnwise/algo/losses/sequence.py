"""GSPO and GMPO: losses on the ratio of a whole sequence."""

from __future__ import annotations

from typing import Unpack

import torch

from turnwise.algo.losses.policy import (
    LossOptions,
    PolicyTokens,
    clip_range,
    clipped_surrogate,
    is_above,
    policy_loss,
)
from turnwise.algo.masked import as_mask, keep
from turnwise.algo.types import TensorMetrics, TokenTerms

# A bound on the log-ratio of a whole sequence: e^10.
_MAX_LOG_RATIO = 10.0


def compute_gspo_loss(
    old_log_probs: torch.Tensor,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    clip_ratio: float = 0.2,
    *,
    clip_ratio_low: float | None = None,
    clip_ratio_high: float | None = None,
    **options: Unpack[LossOptions],
) -> tuple[torch.Tensor, TensorMetrics]:
    """GSPO (Zheng et al., https://arxiv.org/abs/2507.18071).

        s_i = exp(mean_t(log π_now − log π_old)),    L = −min(s A, clip(s) A)

    in its token form, s_it = sg(s_i) · π_now / sg(π_now), which allows token advantages. The paper
    clips far tighter than PPO (3e-4 and 4e-4) and averages per sequence, the default here.
    """
    low, high = clip_range(clip_ratio, clip_ratio_low, clip_ratio_high)
    options.setdefault("loss_agg_mode", "seq-mean-token-mean")

    def token_loss(tokens: PolicyTokens) -> TokenTerms:
        log_ratio, lengths = tokens.log_ratio, tokens.mask.sum(1, keepdim=True).clamp(min=1)
        sequence = log_ratio.sum(1, keepdim=True) / lengths
        # The value is the sequence's ratio, the gradient that of the token's own log-prob.
        token = sequence.detach() + tokens.log_probs - tokens.log_probs.detach()
        ratio = token.clamp(max=_MAX_LOG_RATIO).exp()
        losses, is_clipped = clipped_surrogate(ratio, tokens.advantages, low, high)
        return TokenTerms(losses, {"clip_fraction": is_clipped, "kl": -log_ratio, "ratio": ratio})

    return policy_loss(token_loss, options, old_log_probs, log_probs, advantages, response_mask)


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
) -> tuple[torch.Tensor, TensorMetrics]:
    """GMPO, the geometric mean of the token ratios (Zhao et al., https://arxiv.org/abs/2507.20673).

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
    options.setdefault("loss_agg_mode", "seq-mean-token-mean")

    def token_loss(tokens: PolicyTokens) -> TokenTerms:
        log_ratio, advantages, sign = tokens.log_ratio, tokens.advantages, tokens.advantages.sign()
        pessimistic = sign * torch.minimum(sign * log_ratio, sign * log_ratio.clamp(-low, high))
        lengths = tokens.mask.sum(1, keepdim=True).clamp(min=1)
        ratio = (pessimistic.sum(1, keepdim=True) / lengths).exp()
        advantage = advantages.sum(1, keepdim=True) / lengths
        # Each token has the loss of its row, so that the mean over the row is that loss.
        losses = (-advantage * ratio).expand_as(tokens.mask)
        metrics = {
            "clip_fraction": is_above(log_ratio, high) * is_above(advantages, 0.0),
            "clip_fraction_lower": is_above(-log_ratio, low) * is_above(-advantages, 0.0),
            "kl": -log_ratio,
            "ratio": ratio.expand_as(tokens.mask),
        }
        return TokenTerms(losses, metrics)

    return policy_loss(token_loss, options, old_log_probs, log_probs, advantages, response_mask)
