"""Policy losses as whole-batch torch formulas that autograd differentiates: a second reference."""

from __future__ import annotations

from typing import Any

import torch


def plain_policy_loss(
    function: str,
    old_log_probs: torch.Tensor,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    **options: Any,
) -> torch.Tensor:
    mask = response_mask.to(log_probs.dtype)
    old, a = old_log_probs, advantages
    ratio = (log_probs - old).exp()
    low = options.get("clip_ratio_low", options.get("clip_ratio", 0.2))
    high = options.get("clip_ratio_high", options.get("clip_ratio", 0.2))
    name = function.removeprefix("compute_").removesuffix("_loss")
    mode = "token-mean"
    if name in ("policy", "ppo"):
        if "config" in options:
            low = high = options["config"]["clip_ratio"]
        losses = -torch.min(ratio * a, ratio.clip(1 - low, 1 + high) * a)
        bounded = torch.min(losses, -options.get("clip_ratio_c", 3.0) * a)
        losses = torch.where(a < 0, bounded, losses)
    elif name == "gspo":
        mode = "seq-mean-token-mean"
        sequence = _row_mean(log_probs - old, mask).exp().detach()
        weight = sequence * log_probs.exp() / log_probs.exp().detach()
        losses = -torch.min(weight * a, weight.clip(1 - low, 1 + high) * a)
    elif name == "cispo":
        losses = -ratio.clip(1 - low, 1 + high).detach() * a * log_probs
    elif name == "sapo":
        mode = "seq-mean-token-mean"
        positive, negative = options.get("tau_pos", 1.0), options.get("tau_neg", 1.05)
        tau = torch.where(a > 0, torch.full_like(a, positive), torch.full_like(a, negative))
        losses = -4 / tau * torch.sigmoid(tau * (ratio - 1)) * a
    elif name in ("gpg", "reinforce"):
        mode = "token-mean" if name == "gpg" else "seq-mean-token-sum"
        losses = -a * log_probs
    elif name == "geo_mean":
        mode = "seq-mean-token-mean"
        low, high = (options.get(f"clip_ratio_{side}", 0.4) for side in ("low", "high"))
        bounded = torch.where(
            a > 0, (log_probs - old).clip(max=high), (log_probs - old).clip(min=-low)
        )
        losses = (-_row_mean(a, mask) * _row_mean(bounded, mask).exp()).expand_as(mask)
    elif name in ("clip_cov", "kl_cov"):
        losses = _covariance_loss(name, ratio, log_probs, old, a, mask, options)
    else:
        assert name in ("dppo_tv", "dppo_kl")
        new, before = log_probs.detach().exp(), old.exp()
        if name == "dppo_tv":
            too_far_up, too_far_down = new - before > high, before - new > low
        else:
            binary = before * (before / new).log() + (1 - before) * ((1 - before) / (1 - new)).log()
            too_far_up = (binary > high) & (new > before)
            too_far_down = (binary > low) & (new < before)
        inside = ~torch.where(a > 0, too_far_up, too_far_down)
        bounded = ratio.detach().clip(max=options.get("clip_ratio_c", 20.0))
        losses = -bounded * a * log_probs * inside
    if "importance_weights" in options:
        weights = options["importance_weights"]
        losses = losses * (_row_mean(weights.log(), mask).exp() if name == "geo_mean" else weights)
    return plain_aggregate(losses, mask, options.get("loss_agg_mode", mode))


def _covariance_loss(
    name: str,
    ratio: torch.Tensor,
    log_probs: torch.Tensor,
    old: torch.Tensor,
    a: torch.Tensor,
    mask: torch.Tensor,
    options: dict[str, Any],
) -> torch.Tensor:
    count = mask.sum()
    centred = log_probs.detach() - (log_probs.detach() * mask).sum() / count
    covariance = centred * (a - (a * mask).sum() / count)
    if name == "kl_cov":
        number = max(1, int(options.get("kl_cov_ratio", 0.0002) * int(count)))
        threshold = covariance[mask.bool()].sort(descending=True).values[number - 1]
        penalty = options.get("kl_cov_coef", 1.0) * (log_probs - old).abs()
        return -a * ratio + torch.where(covariance >= threshold, penalty, torch.zeros_like(a))
    plain, clipped = ratio * a, ratio.clip(0.8, 1.2) * a
    inside = (covariance > options["clip_cov_lower"]) & (covariance < options["clip_cov_upper"])
    is_dropped = inside & (clipped >= plain)
    return torch.where(is_dropped, torch.zeros_like(a), -torch.min(plain, clipped))


def _row_mean(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (x * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clip(min=1)


def plain_aggregate(losses: torch.Tensor, mask: torch.Tensor, mode: str) -> torch.Tensor:
    sums, lengths = (losses * mask).sum(1), mask.sum(1)
    num_sequences = (lengths > 0).sum()
    return {
        "token-mean": lambda: sums.sum() / lengths.sum(),
        "token-sum": sums.sum,
        "seq-mean-token-sum": lambda: sums.sum() / num_sequences,
        "seq-mean-token-sum-norm": lambda: sums.sum() / num_sequences / mask.shape[1],
        "seq-mean-token-mean": lambda: (sums / lengths.clip(min=1)).sum() / num_sequences,
    }[mode]()
