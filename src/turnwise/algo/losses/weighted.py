"""Losses of the form −weight · A · log π, in which only log π has a gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

import torch

from turnwise.algo.losses.policy import LossOptions, clip_range, is_above, log_ratio, policy_loss
from turnwise.algo.types import Metrics, TokenTerms


def compute_reinforce_loss(
    old_log_probs: torch.Tensor,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    **options: Unpack[LossOptions],
) -> tuple[torch.Tensor, Metrics]:
    """Plain REINFORCE (Williams, 1992): L = −A log π_now, summed over each sequence.

    It knows nothing of how far π has moved, so it is for one update per rollout.
    """
    return policy_loss(
        _reinforce_tokens,
        old_log_probs,
        log_probs,
        advantages,
        response_mask,
        options,
        default_mode="seq-mean-token-sum",
    )


def compute_gpg_loss(
    old_log_probs: torch.Tensor,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    **options: Unpack[LossOptions],
) -> tuple[torch.Tensor, Metrics]:
    """GPG (Chu et al., https://arxiv.org/abs/2504.02546): L = −A log π_now, a mean over tokens."""
    return policy_loss(
        _reinforce_tokens, old_log_probs, log_probs, advantages, response_mask, options
    )


def _reinforce_tokens(
    log_probs: torch.Tensor,
    old_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
) -> TokenTerms:
    return TokenTerms(-advantages * log_probs, {"kl": old_log_probs - log_probs})


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
) -> tuple[torch.Tensor, Metrics]:
    """CISPO (MiniMax, https://arxiv.org/abs/2506.13585): clip the weight, keep every gradient.

    L = −sg(clip(r, 1 − ε_low, 1 + ε_high)) · A · log π_now
    """
    low, high = clip_range(clip_ratio, clip_ratio_low, clip_ratio_high)

    def token_loss(
        log_probs: torch.Tensor,
        old_log_probs: torch.Tensor,
        advantages: torch.Tensor,
        mask: torch.Tensor,
    ) -> TokenTerms:
        log_r = log_ratio(log_probs, old_log_probs)
        ratio = log_r.exp()
        weights = ratio.clamp(1.0 - low, 1.0 + high).detach()
        cut = is_above(ratio, 1.0 + high) + is_above(-ratio, low - 1.0)
        metrics = {"clip_fraction": cut, "kl": -log_r, "ratio": ratio}
        return TokenTerms(-weights * advantages * log_probs, metrics)

    return policy_loss(token_loss, old_log_probs, log_probs, advantages, response_mask, options)


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
) -> tuple[torch.Tensor, Metrics]:
    """DPPO with total variation (https://arxiv.org/abs/2602.04879).

        L = −sg(min(r, c)) · A · log π_now · [the token is inside the trust region]

    A token leaves the region when its probability has moved by more than ε in the direction that
    A pushes: π_now − π_old > ε_high where A > 0, < −ε_low elsewhere. The probability itself is
    bounded, not its ratio, so that rare tokens may move freely.
    """
    low, high = clip_range(clip_ratio, clip_ratio_low, clip_ratio_high)

    def is_outside(
        log_probs: torch.Tensor, old_log_probs: torch.Tensor, advantages: torch.Tensor
    ) -> torch.Tensor:
        moved = log_probs.exp() - old_log_probs.exp()
        up = is_above(advantages, 0.0)
        return up * is_above(moved, high) + (1.0 - up) * is_above(-moved, low)

    return _dppo(
        is_outside, clip_ratio_c, old_log_probs, log_probs, advantages, response_mask, options
    )


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
) -> tuple[torch.Tensor, Metrics]:
    """DPPO with KL (https://arxiv.org/abs/2602.04879): as `compute_dppo_tv_loss`.

    A token leaves the region when the KL divergence of "this token or another" exceeds ε and it
    has moved in the direction that A pushes.
    """
    low, high = clip_range(clip_ratio, clip_ratio_low, clip_ratio_high)

    def is_outside(
        log_probs: torch.Tensor, old_log_probs: torch.Tensor, advantages: torch.Tensor
    ) -> torch.Tensor:
        new, old = log_probs.exp(), old_log_probs.exp()
        rest = ((1.0 - old + 1e-8) / (1.0 - new + 1e-8)).log()
        divergence = old * (old_log_probs - log_probs) + (1.0 - old) * rest
        up = is_above(advantages, 0.0)
        risen, fallen = is_above(new, old), is_above(old, new)
        return up * risen * is_above(divergence, high) + (1.0 - up) * fallen * is_above(
            divergence, low
        )

    return _dppo(
        is_outside, clip_ratio_c, old_log_probs, log_probs, advantages, response_mask, options
    )


def _dppo(
    is_outside: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
    ratio_bound: float,
    old_log_probs: torch.Tensor,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    options: LossOptions,
) -> tuple[torch.Tensor, Metrics]:
    def token_loss(
        log_probs: torch.Tensor,
        old_log_probs: torch.Tensor,
        advantages: torch.Tensor,
        mask: torch.Tensor,
    ) -> TokenTerms:
        log_r = log_ratio(log_probs, old_log_probs)
        ratio = log_r.exp()
        outside = is_outside(log_probs, old_log_probs, advantages)
        weights = ratio.clamp(max=ratio_bound).detach() * (1.0 - outside)
        metrics = {"clip_fraction": outside, "kl": -log_r, "ratio": ratio}
        return TokenTerms(-weights * advantages * log_probs, metrics)

    return policy_loss(token_loss, old_log_probs, log_probs, advantages, response_mask, options)
