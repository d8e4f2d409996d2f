"""SAPO: a soft gate instead of a clip."""

from __future__ import annotations

from typing import Unpack

import torch

from turnwise.algo.losses.policy import LossOptions, PolicyTokens, is_above, policy_loss
from turnwise.algo.types import TensorMetrics, TokenTerms


def compute_sapo_loss(
    old_log_probs: torch.Tensor,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    *,
    tau_pos: float = 1.0,
    tau_neg: float = 1.05,
    **options: Unpack[LossOptions],
) -> tuple[torch.Tensor, TensorMetrics]:
    """SAPO (Gao et al., https://arxiv.org/abs/2511.20347).

        L = −(4 / τ) σ(τ (r − 1)) · A,    τ = τ_pos where A > 0, τ_neg elsewhere

    The gradient fades smoothly as r leaves 1, a little faster for tokens with A ≤ 0.
    """
    options.setdefault("loss_agg_mode", "seq-mean-token-mean")

    def token_loss(tokens: PolicyTokens) -> TokenTerms:
        log_ratio = tokens.bounded_log_ratio
        ratio = log_ratio.exp()
        tau = tau_neg + (tau_pos - tau_neg) * is_above(tokens.advantages, 0.0)
        gate = torch.sigmoid(tau * (ratio - 1.0))
        losses = -tokens.advantages * gate * (4.0 / tau)
        return TokenTerms(losses, {"kl": -log_ratio, "ratio": ratio})

    return policy_loss(token_loss, options, old_log_probs, log_probs, advantages, response_mask)
