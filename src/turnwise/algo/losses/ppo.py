"""PPO's clipped objective."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import torch

from turnwise.algo.losses.policy import (
    MAX_LOG_RATIO,
    LossOptions,
    clip_range,
    is_above,
    log_ratio,
    policy_loss,
)
from turnwise.algo.losses.tiled import Kernel, KernelTerms, Metrics, TokenTerms
from turnwise.algo.tiling import has_kernels
from turnwise.errors import ConfigError


def compute_policy_loss(
    old_log_probs: torch.Tensor,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    clip_ratio: float = 0.2,
    *,
    clip_ratio_low: float | None = None,
    clip_ratio_high: float | None = None,
    clip_ratio_c: float = 3.0,
    **options: Unpack[LossOptions],
) -> tuple[torch.Tensor, Metrics]:
    """PPO (Schulman et al., https://arxiv.org/abs/1707.06347).

        L = −min(r A, clip(r, 1 − ε_low, 1 + ε_high) A),   and at most −c A where A < 0

    ε_low and ε_high default to `clip_ratio` and may differ (clip-higher of DAPO,
    https://arxiv.org/abs/2503.14476). The bound c is dual clip (https://arxiv.org/abs/1912.09729):
    one bad token that has become very likely cannot rule the batch; `clip_fraction_lower` is the
    share it touches.
    """
    low, high = clip_range(clip_ratio, clip_ratio_low, clip_ratio_high)
    if clip_ratio_c <= 1.0:
        raise ConfigError(f"clip_ratio_c got {clip_ratio_c}, expected a number above 1")

    def token_loss(
        log_probs: torch.Tensor,
        old_log_probs: torch.Tensor,
        advantages: torch.Tensor,
        mask: torch.Tensor,
    ) -> TokenTerms:
        # In place where it can be: on a large batch, memory is what this costs.
        log_r = log_ratio(log_probs, old_log_probs)
        ratio = log_r.exp()
        cost = advantages.neg_()
        plain = cost * ratio
        clipped = ratio.clamp(1.0 - low, 1.0 + high).mul_(cost)
        cut = is_above(clipped, plain)
        pessimistic = torch.maximum(plain, clipped, out=clipped)
        # Where A ≥ 0 the loss is at most 0, so this bound touches A < 0 alone.
        bound = cost.relu_().mul_(clip_ratio_c)
        cut_lower = is_above(pessimistic, bound)
        losses = torch.minimum(pessimistic, bound, out=bound)
        # r moves as fast as log π does, times r; where a constant took over, nothing moves.
        slopes = plain.mul_(torch.add(cut, cut_lower, out=clipped).neg_().add_(1.0))
        metrics = {
            "clip_fraction": cut,
            "clip_fraction_lower": cut_lower,
            "kl": log_r.neg_(),
            "ratio": ratio,
        }
        return TokenTerms(losses, slopes, metrics)

    return policy_loss(
        token_loss,
        old_log_probs,
        log_probs,
        advantages,
        response_mask,
        options,
        kernel=_gpu_kernel(log_probs, (1.0 - low, 1.0 + high, clip_ratio_c)),
    )


def _gpu_kernel(log_probs: torch.Tensor, clip: tuple[float, float, float]) -> Kernel | None:
    """All of it as one kernel, where Triton can make one."""
    if not has_kernels(log_probs):
        return None
    from turnwise.algo.losses.ppo_kernel import ppo_terms

    def run(
        log_probs: torch.Tensor,
        old_log_probs: torch.Tensor,
        advantages: torch.Tensor,
        mask: torch.Tensor,
        row_weights: torch.Tensor | None,
    ) -> KernelTerms:
        gradient, totals = ppo_terms(
            log_probs, old_log_probs, advantages, mask, row_weights, clip, MAX_LOG_RATIO
        )
        loss, clip_fraction, clip_fraction_lower, kl, ratio, factor = totals.unbind()
        metrics = {
            "clip_fraction": clip_fraction,
            "clip_fraction_lower": clip_fraction_lower,
            "kl": kl,
            "ratio": ratio,
        }
        return KernelTerms(gradient, factor, loss, metrics)

    return run


def compute_ppo_loss(
    old_log_probs: torch.Tensor,
    new_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    config: Any = None,
) -> tuple[torch.Tensor, Metrics]:
    """`compute_policy_loss` with the clip range read from a config.

    `config` is a mapping or an object with `clip_ratio` (`ConfigStore().training` is one); None
    takes the default.
    """
    if config is None:
        clip_ratio = 0.2
    elif isinstance(config, Mapping):
        clip_ratio = config.get("clip_ratio", 0.2)
    else:
        clip_ratio = config.clip_ratio
    return compute_policy_loss(old_log_probs, new_log_probs, advantages, response_mask, clip_ratio)
