"""Clip-Cov and KL-Cov: restrain the few tokens that cost the most entropy.

Entropy falls where a likely token has a high advantage: by the covariance of log-prob and
advantage (Cui et al., https://arxiv.org/abs/2505.22617). Which tokens these are is decided over a
whole batch: by the loss itself, or before it where the batch is split (`selected`).
"""

from typing import Unpack

import torch

from turnwise.algo.losses.policy import LossOptions, PolicyTokens, clip_range, clipped_surrogate
from turnwise.algo.masked import TensorMetrics, as_mask, keep, wide
from turnwise.errors import ConfigError


def compute_clip_cov_loss(
    old_log_probs: torch.Tensor,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    clip_ratio: float = 0.2,
    *,
    clip_ratio_low: float | None = None,
    clip_ratio_high: float | None = None,
    clip_cov_ratio: float = 0.0002,
    clip_cov_lower: float = 1.0,
    clip_cov_upper: float = 5.0,
    generator: torch.Generator | None = None,
    selected: torch.Tensor | None = None,
    **options: Unpack[LossOptions],
) -> tuple[torch.Tensor, TensorMetrics]:
    """Clip-Cov: PPO's clip, and no gradient at all for a few high-covariance tokens.

    A share `clip_cov_ratio` of the tokens, drawn at random from those whose covariance lies
    between the two bounds and which the clip leaves alone, is dropped from the loss. `selected`
    [B, T] gives them, where this is only a part of a batch (`select_clip_cov_tokens`).
    """
    low, high = clip_range(clip_ratio, clip_ratio_low, clip_ratio_high)
    mask = as_mask(response_mask)
    if selected is None:
        selected = torch.zeros_like(mask)
        selected[mask] = select_clip_cov_tokens(
            old_log_probs[mask],
            log_probs[mask],
            advantages[mask],
            clip_ratio_low=low,
            clip_ratio_high=high,
            clip_cov_ratio=clip_cov_ratio,
            clip_cov_lower=clip_cov_lower,
            clip_cov_upper=clip_cov_upper,
            generator=generator,
        )
    tokens = PolicyTokens(old_log_probs, log_probs, advantages, mask)
    dropped = keep(selected.to(tokens.advantages.dtype), mask)
    log_ratio = tokens.log_ratio
    ratio = log_ratio.exp()
    losses, is_clipped = clipped_surrogate(ratio, tokens.advantages, low, high)
    metrics = {
        "clip_fraction": is_clipped,
        "cov_fraction": dropped,
        "kl": -log_ratio,
        "ratio": ratio,
    }
    return tokens.aggregate(losses * (1.0 - dropped), metrics, options)


@torch.no_grad()
def select_clip_cov_tokens(
    old_log_probs: torch.Tensor,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    clip_ratio: float = 0.2,
    *,
    clip_ratio_low: float | None = None,
    clip_ratio_high: float | None = None,
    clip_cov_ratio: float = 0.0002,
    clip_cov_lower: float = 1.0,
    clip_cov_upper: float = 5.0,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """Return which policy tokens of a batch Clip-Cov drops: [N] each -> [N] bool."""
    low, high = clip_range(clip_ratio, clip_ratio_low, clip_ratio_high)
    ratio = (log_probs - old_log_probs).exp()
    clipped_away = ratio.clamp(1.0 - low, 1.0 + high) * -advantages > -advantages * ratio
    covariance = _covariance(log_probs, advantages)
    candidates = (covariance > clip_cov_lower) & (covariance < clip_cov_upper) & ~clipped_away
    chosen = candidates.nonzero().squeeze(1)
    number = _count(clip_cov_ratio, len(log_probs), "clip_cov_ratio")
    order = torch.randperm(len(chosen), generator=generator)[:number].to(chosen.device)
    selected = torch.zeros_like(candidates)
    selected[chosen[order]] = True
    return selected


def compute_kl_cov_loss(
    old_log_probs: torch.Tensor,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    *,
    kl_cov_ratio: float = 0.0002,
    kl_cov_coef: float = 1.0,
    selected: torch.Tensor | None = None,
    **options: Unpack[LossOptions],
) -> tuple[torch.Tensor, TensorMetrics]:
    """KL-Cov: no clip, but a penalty on the tokens of highest covariance.

        L = −A r + β |log r| · [the token is among the top `kl_cov_ratio` of all by covariance]

    `selected` [B, T] gives them, where this is only a part of a batch (`select_kl_cov_tokens`).
    """
    mask = as_mask(response_mask)
    if selected is None:
        selected = torch.zeros_like(mask)
        selected[mask] = select_kl_cov_tokens(
            old_log_probs[mask], log_probs[mask], advantages[mask], kl_cov_ratio=kl_cov_ratio
        )
    tokens = PolicyTokens(old_log_probs, log_probs, advantages, mask)
    top = keep(selected.to(tokens.advantages.dtype), mask)
    log_ratio = tokens.log_ratio
    ratio = log_ratio.exp()
    losses = -tokens.advantages * ratio + kl_cov_coef * top * log_ratio.abs()
    return tokens.aggregate(
        losses, {"cov_fraction": top, "kl": -log_ratio, "ratio": ratio}, options
    )


@torch.no_grad()
def select_kl_cov_tokens(
    old_log_probs: torch.Tensor,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    *,
    kl_cov_ratio: float = 0.0002,
) -> torch.Tensor:
    """Return which policy tokens of a batch KL-Cov penalises: [N] each -> [N] bool."""
    covariance = _covariance(log_probs, advantages)
    number = _count(kl_cov_ratio, len(covariance), "kl_cov_ratio")
    selected = torch.zeros_like(covariance, dtype=torch.bool)
    selected[covariance.topk(min(number, len(covariance))).indices] = True
    return selected


def _covariance(log_probs: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
    """Return each token's term of the covariance of log-prob and advantage: [N]."""
    log_probs, advantages = wide(log_probs), wide(advantages)
    return (advantages - advantages.mean()) * (log_probs - log_probs.mean())


def _count(ratio: float, num_tokens: int, name: str) -> int:
    if ratio <= 0:
        raise ConfigError(f"{name} got {ratio}, expected a number above 0")
    return max(1, int(ratio * num_tokens))
