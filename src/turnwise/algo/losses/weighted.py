"""Losses of the form −weight · A · log π, in which only log π has a gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

import torch

from turnwise.algo.losses.policy import (
    LossOptions,
    PolicyTokenLoss,
    PolicyTokens,
    clip_range,
    is_above,
    policy_loss,
)
from turnwise.algo.types import TensorMetrics, TokenTerms


def compute_reinforce_loss(
    old_log_probs: torch.Tensor,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    **options: Unpack[LossOptions],
) -> tuple[torch.Tensor, TensorMetrics]:
    """Plain REINFORCE (Williams, 1992): L = −A log π_now, summed over each sequence.

    It does not know how far π has moved, so it is for one update per rollout.
    """
    options.setdefault("loss_agg_mode", "seq-mean-token-sum")
    return compute_gpg_loss(old_log_probs, log_probs, advantages, response_mask, **options)


def compute_gpg_loss(
    old_log_probs: torch.Tensor,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    **options: Unpack[LossOptions],
) -> tuple[torch.Tensor, TensorMetrics]:
    """GPG (Chu et al., https://arxiv.org/abs/2504.02546): L = −A log π_now, a mean over tokens."""

    def token_loss(tokens: PolicyTokens) -> TokenTerms:
        return TokenTerms(-tokens.advantages * tokens.log_probs, {"kl": -tokens.log_ratio})

    return policy_loss(token_loss, options, old_log_probs, log_probs, advantages, response_mask)


def compute_cispo_loss(
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
    """CISPO (MiniMax, https://arxiv.org/abs/2506.13585): clip the weight, keep every gradient.

    L = −sg(clip(r, 1 − ε_low, 1 + ε_high)) · A · log π_now
    """
    low, high = clip_range(clip_ratio, clip_ratio_low, clip_ratio_high)

    def token_loss(tokens: PolicyTokens) -> TokenTerms:
        log_ratio = tokens.bounded_log_ratio
        ratio = log_ratio.exp()
        weights = ratio.clamp(1.0 - low, 1.0 + high).detach()
        is_clipped = is_above(ratio, 1.0 + high) + is_above(-ratio, low - 1.0)
        metrics = {"clip_fraction": is_clipped, "kl": -log_ratio, "ratio": ratio}
        return TokenTerms(-weights * tokens.advantages * tokens.log_probs, metrics)

    return policy_loss(token_loss, options, old_log_probs, log_probs, advantages, response_mask)


def compute_dppo_tv_loss(
    old_log_probs: torch.Tensor,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    clip_ratio: float = 0.2,
    *,
    clip_ratio_low: float | None = None,
    clip_ratio_high: float | None = None,
    clip_ratio_c: float = 20.0,
    **options: Unpack[LossOptions],
) -> tuple[torch.Tensor, TensorMetrics]:
    """DPPO with total variation (https://arxiv.org/abs/2602.04879).

        L = −sg(min(r, c)) · A · log π_now · [the token is inside the trust region]

    A token leaves the region when its probability has moved by more than ε in the direction that
    A pushes: π_now − π_old > ε_high where A > 0, < −ε_low elsewhere. The probability itself is
    bounded, not its ratio, so that rare tokens may move freely.
    """
    low, high = clip_range(clip_ratio, clip_ratio_low, clip_ratio_high)

    def is_outside(tokens: PolicyTokens) -> torch.Tensor:
        moved = tokens.log_probs.exp() - tokens.old_log_probs.exp()
        up = is_above(tokens.advantages, 0.0)
        return up * is_above(moved, high) + (1.0 - up) * is_above(-moved, low)

    token_loss = _dppo(is_outside, clip_ratio_c)
    return policy_loss(token_loss, options, old_log_probs, log_probs, advantages, response_mask)


def compute_dppo_kl_loss(
    old_log_probs: torch.Tensor,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    clip_ratio: float = 0.2,
    *,
    clip_ratio_low: float | None = None,
    clip_ratio_high: float | None = None,
    clip_ratio_c: float = 20.0,
    **options: Unpack[LossOptions],
) -> tuple[torch.Tensor, TensorMetrics]:
    """DPPO with KL (https://arxiv.org/abs/2602.04879): as `compute_dppo_tv_loss`.

    A token leaves the region when the KL divergence of "this token or another" exceeds ε and it
    has moved in the direction that A pushes.
    """
    low, high = clip_range(clip_ratio, clip_ratio_low, clip_ratio_high)

    def is_outside(tokens: PolicyTokens) -> torch.Tensor:
        new, old = tokens.log_probs.exp(), tokens.old_log_probs.exp()
        rest = ((1.0 - old + 1e-8) / (1.0 - new + 1e-8)).log()
        divergence = old * (tokens.old_log_probs - tokens.log_probs) + (1.0 - old) * rest
        up = is_above(tokens.advantages, 0.0)
        too_high = is_above(new, old) * is_above(divergence, high)
        too_low = is_above(old, new) * is_above(divergence, low)
        return up * too_high + (1.0 - up) * too_low

    token_loss = _dppo(is_outside, clip_ratio_c)
    return policy_loss(token_loss, options, old_log_probs, log_probs, advantages, response_mask)


def _dppo(
    is_outside: Callable[[PolicyTokens], torch.Tensor], ratio_bound: float
) -> PolicyTokenLoss:
    def token_loss(tokens: PolicyTokens) -> TokenTerms:
        log_ratio = tokens.bounded_log_ratio
        ratio = log_ratio.exp()
        outside = is_outside(tokens)
        weights = ratio.clamp(max=ratio_bound).detach() * (1.0 - outside)
        metrics = {"clip_fraction": outside, "kl": -log_ratio, "ratio": ratio}
        return TokenTerms(-weights * tokens.advantages * tokens.log_probs, metrics)

    return token_loss
