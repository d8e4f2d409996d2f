"""GSPO: the ratio of the whole sequence."""

from __future__ import annotations

from typing import Unpack

import torch

from turnwise.algo.losses.policy import LossOptions, clip_range, is_above, policy_loss
from turnwise.algo.types import Metrics, TokenTerms

# e^10 is as far as the ratio of a whole sequence goes.
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
) -> tuple[torch.Tensor, Metrics]:
    """GSPO (Zheng et al., https://arxiv.org/abs/2507.18071).

        s_i = exp(mean_t(log π_now − log π_old)),    L = −min(s A, clip(s) A)

    in its token form, s_it = sg(s_i) · π_now / sg(π_now), which allows token advantages. The paper
    clips far tighter than PPO (3e-4 and 4e-4) and averages per sequence, the default here.
    """
    low, high = clip_range(clip_ratio, clip_ratio_low, clip_ratio_high)

    def token_loss(
        log_probs: torch.Tensor,
        old_log_probs: torch.Tensor,
        advantages: torch.Tensor,
        mask: torch.Tensor,
    ) -> TokenTerms:
        log_r = log_probs - old_log_probs
        sequence = log_r.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
        # The value is the sequence's ratio, the gradient that of the token's own log-prob.
        token = sequence.detach() + log_probs - log_probs.detach()
        ratio = token.clamp(max=_MAX_LOG_RATIO).exp()
        unclipped = -advantages * ratio
        clipped = -advantages * ratio.clamp(1.0 - low, 1.0 + high)
        metrics = {
            "clip_fraction": is_above(clipped, unclipped),
            "kl": -log_r,
            "ratio": ratio,
        }
        return TokenTerms(torch.maximum(unclipped, clipped), metrics)

    return policy_loss(
        token_loss,
        old_log_probs,
        log_probs,
        advantages,
        response_mask,
        options,
        default_mode="seq-mean-token-mean",
    )
