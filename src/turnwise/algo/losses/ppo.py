"""PPO's clipped objective."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import torch

from turnwise.algo.losses.policy import (
    LossOptions,
    PolicyTokens,
    clip_range,
    clipped_surrogate,
    is_above,
    policy_loss,
)
from turnwise.algo.types import TensorMetrics, TokenTerms
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
) -> tuple[torch.Tensor, TensorMetrics]:
    """PPO (Schulman et al., https://arxiv.org/abs/1707.06347).

        L = −min(r A, clip(r, 1 − ε_low, 1 + ε_high) A),   and at most −c A where A < 0

    ε_low and ε_high default to `clip_ratio` and may differ (clip-higher of DAPO,
    https://arxiv.org/abs/2503.14476). The bound c is dual clip (https://arxiv.org/abs/1912.09729):
    one bad token that has become very likely cannot dominate the batch; `clip_fraction_lower` is
    the share of tokens that it bounds.
    """
    low, high = clip_range(clip_ratio, clip_ratio_low, clip_ratio_high)
    if clip_ratio_c <= 1.0:
        raise ConfigError(f"clip_ratio_c got {clip_ratio_c}, expected a number above 1")

    def token_loss(tokens: PolicyTokens) -> TokenTerms:
        log_ratio = tokens.bounded_log_ratio
        ratio = log_ratio.exp()
        pessimistic, is_clipped = clipped_surrogate(ratio, tokens.advantages, low, high)
        # Where A ≥ 0 the loss is at most 0, so this bound touches A < 0 alone.
        bound = clip_ratio_c * (-tokens.advantages).relu()
        metrics = {
            "clip_fraction": is_clipped,
            "clip_fraction_lower": is_above(pessimistic, bound),
            "kl": -log_ratio,
            "ratio": ratio,
        }
        return TokenTerms(torch.minimum(pessimistic, bound), metrics)

    return policy_loss(token_loss, options, old_log_probs, log_probs, advantages, response_mask)


def compute_ppo_loss(
    old_log_probs: torch.Tensor,
    new_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    config: Any = None,
) -> tuple[torch.Tensor, TensorMetrics]:
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
