"""Clip-Cov and KL-Cov: hold back the few tokens that cost the most entropy.

Entropy falls where a likely token has a high advantage: by the covariance of log-prob and
advantage (Cui et al., https://arxiv.org/abs/2505.22617). Both losses pick such tokens over the
whole batch they are given, so they are not the sum of their parts' losses.
"""

from __future__ import annotations

from typing import Unpack

import torch

from turnwise.algo.losses.policy import LossOptions, clip_range, is_above
from turnwise.algo.losses.tiled import Metrics, TokenLoss, TokenTerms, tiled_loss
from turnwise.algo.masked import as_mask, keep, masked_mean
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
    **options: Unpack[LossOptions],
) -> tuple[torch.Tensor, Metrics]:
    """Clip-Cov: PPO's clip, and no gradient at all for a few high-covariance tokens.

    A share `clip_cov_ratio` of the tokens, drawn at random from those whose covariance lies
    between the two bounds and which the clip leaves alone, is dropped from the loss.
    """
    low, high = clip_range(clip_ratio, clip_ratio_low, clip_ratio_high)
    mask = as_mask(response_mask)
    with torch.no_grad():
        ratio = (log_probs - old_log_probs).exp()
        clipped_away = ratio.clamp(1.0 - low, 1.0 + high) * -advantages > -advantages * ratio
        covariance = _covariance(log_probs, advantages, mask)
        candidates = (covariance > clip_cov_lower) & (covariance < clip_cov_upper)
        chosen = (candidates & mask & ~clipped_away).nonzero()
        number = _count(clip_cov_ratio, mask, "clip_cov_ratio")
        picked = chosen[torch.randperm(len(chosen), generator=generator)[:number].to(mask.device)]
        dropped = torch.zeros(mask.shape, dtype=torch.float32, device=mask.device)
        dropped[picked[:, 0], picked[:, 1]] = 1.0

    def token_loss(
        log_probs: torch.Tensor,
        old_log_probs: torch.Tensor,
        advantages: torch.Tensor,
        dropped: torch.Tensor,
        mask: torch.Tensor,
    ) -> TokenTerms:
        log_r = log_probs - old_log_probs
        ratio = log_r.exp()
        plain = -advantages * ratio
        clipped = -advantages * ratio.clamp(1.0 - low, 1.0 + high)
        cut = is_above(clipped, plain)
        losses = torch.maximum(plain, clipped) * (1.0 - dropped)
        slopes = plain * (1.0 - cut) * (1.0 - dropped)
        metrics = {"clip_fraction": cut, "cov_fraction": dropped, "kl": -log_r, "ratio": ratio}
        return TokenTerms(losses, slopes, metrics)

    return _with_choice(token_loss, old_log_probs, log_probs, advantages, dropped, mask, options)


def compute_kl_cov_loss(
    old_log_probs: torch.Tensor,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    *,
    kl_cov_ratio: float = 0.0002,
    kl_cov_coef: float = 1.0,
    **options: Unpack[LossOptions],
) -> tuple[torch.Tensor, Metrics]:
    """KL-Cov: no clip, but a penalty on the tokens of highest covariance.

    L = −A r + β |log r| · [the token is among the top `kl_cov_ratio` of all by covariance]
    """
    mask = as_mask(response_mask)
    with torch.no_grad():
        covariance = _covariance(log_probs, advantages, mask)
        flat = torch.where(mask, covariance, -torch.inf).flatten()
        number = min(_count(kl_cov_ratio, mask, "kl_cov_ratio"), int(mask.sum()))
        top = torch.zeros_like(flat, dtype=torch.float32)
        top[flat.topk(number).indices] = 1.0

    def token_loss(
        log_probs: torch.Tensor,
        old_log_probs: torch.Tensor,
        advantages: torch.Tensor,
        top: torch.Tensor,
        mask: torch.Tensor,
    ) -> TokenTerms:
        log_r = log_probs - old_log_probs
        ratio = log_r.exp()
        plain = -advantages * ratio
        losses = plain + kl_cov_coef * top * log_r.abs()
        slopes = plain + kl_cov_coef * top * log_r.sign()
        return TokenTerms(losses, slopes, {"cov_fraction": top, "kl": -log_r, "ratio": ratio})

    return _with_choice(
        token_loss, old_log_probs, log_probs, advantages, top.view(mask.shape), mask, options
    )


def _covariance(
    log_probs: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Each token's part of the covariance of log-prob and advantage, over the batch."""
    log_probs, advantages = keep(log_probs, mask), keep(advantages, mask)
    return (advantages - masked_mean(advantages, mask)) * (log_probs - masked_mean(log_probs, mask))


def _count(ratio: float, mask: torch.Tensor, name: str) -> int:
    if ratio <= 0:
        raise ConfigError(f"{name} got {ratio}, expected a number above 0")
    return max(1, int(ratio * int(mask.sum())))


def _with_choice(
    token_loss: TokenLoss,
    old_log_probs: torch.Tensor,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    choice: torch.Tensor,
    mask: torch.Tensor,
    options: LossOptions,
) -> tuple[torch.Tensor, Metrics]:
    return tiled_loss(
        token_loss,
        log_probs,
        (old_log_probs, advantages, choice),
        mask,
        options.get("loss_agg_mode", "token-mean"),
        options.get("totals"),
        options.get("importance_weights"),
    )
