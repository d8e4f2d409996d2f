"""SAPO: a soft gate instead of a clip."""

from __future__ import annotations

from typing import Unpack

import torch

from turnwise.algo.losses.policy import LossOptions, is_above, log_ratio, policy_loss
from turnwise.algo.types import Metrics, TokenTerms


def compute_sapo_loss(
    old_log_probs: torch.Tensor,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    *,
    tau_pos: float = 1.0,
    tau_neg: float = 1.05,
    **options: Unpack[LossOptions],
) -> tuple[torch.Tensor, Metrics]:
    """SAPO (Gao et al., https://arxiv.org/abs/2511.20347).

        L = −(4 / τ) σ(τ (r − 1)) · A,    τ = τ_pos where A > 0, τ_neg elsewhere

    The gradient fades smoothly as r leaves 1, a little faster for bad tokens.
    """

    def token_loss(
        log_probs: torch.Tensor,
        old_log_probs: torch.Tensor,
        advantages: torch.Tensor,
        mask: torch.Tensor,
    ) -> TokenTerms:
        log_r = log_ratio(log_probs, old_log_probs)
        ratio = log_r.exp()
        tau = tau_neg + (tau_pos - tau_neg) * is_above(advantages, 0.0)
        gate = torch.sigmoid(tau * (ratio - 1.0))
        losses = -advantages * gate * (4.0 / tau)
        return TokenTerms(losses, {"kl": -log_r, "ratio": ratio})

    return policy_loss(
        token_loss,
        old_log_probs,
        log_probs,
        advantages,
        response_mask,
        options,
        default_mode="seq-mean-token-mean",
    )
