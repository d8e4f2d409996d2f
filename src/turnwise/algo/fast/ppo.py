"""PPO's clipped loss with its gradient worked out by hand.

`losses/ppo.py` says what is computed. Nearly every run spends its loss here, so that this one has a
gradient of its own: in place on a CPU, and one Triton kernel on a GPU. The tests compare both with
autograd.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from turnwise.algo.fast.tiled_loss import Tile, tiled_loss
from turnwise.algo.fast.tiles import has_kernels
from turnwise.algo.masked import BatchTotals, LossAggregation, as_mask, row_weights
from turnwise.algo.types import Metrics


def ppo_loss(
    old_log_probs: torch.Tensor,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    clip: tuple[float, float, float],
    max_log_ratio: float,
    mode: LossAggregation,
    totals: BatchTotals | None,
    importance_weights: torch.Tensor | None,
) -> tuple[torch.Tensor, Metrics]:
    """Return the loss and its metrics; `clip` is (1 − ε_low, 1 + ε_high, c)."""
    mask = as_mask(response_mask)
    if importance_weights is None and has_kernels(log_probs):
        is_mean = mode == "token-mean" and (totals is None or not totals.num_tokens)
        weights = None if is_mean else row_weights(mask, mode, totals)
        return _on_gpu(log_probs, old_log_probs, advantages, mask, weights, clip, max_log_ratio)

    def function(
        inputs: Sequence[torch.Tensor],
        mask: torch.Tensor,
        weights: torch.Tensor,
        needs_gradient: bool,
    ) -> Tile:
        log_probs, old_log_probs, advantages = inputs
        return _tile(log_probs, old_log_probs, advantages, weights, clip, max_log_ratio)

    weights = row_weights(mask, mode, totals)
    constants = (old_log_probs, advantages)
    return tiled_loss(function, log_probs, constants, mask, weights, importance_weights)


def _tile(
    log_probs: torch.Tensor,
    old_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    weights: torch.Tensor,
    clip: tuple[float, float, float],
    max_log_ratio: float,
) -> Tile:
    """Evaluate a few rows in place: on a large batch, memory is what this costs."""
    lowest, highest, dual = clip
    log_r = log_probs.sub_(old_log_probs).clamp_(-max_log_ratio, max_log_ratio)
    ratio = log_r.exp()
    cost = advantages.neg_()
    unclipped = cost * ratio
    clipped = ratio.clamp(lowest, highest).mul_(cost)
    cut = _is_above(clipped, unclipped)
    pessimistic = torch.maximum(unclipped, clipped, out=clipped)
    # Where A ≥ 0 the loss is at most 0, so this bound touches A < 0 alone.
    bound = cost.relu_().mul_(dual)
    cut_lower = _is_above(pessimistic, bound)
    losses = torch.minimum(pessimistic, bound, out=bound)
    # r moves as fast as log π does, times r; where a constant took over, nothing moves.
    gradient = unclipped.mul_(torch.add(cut, cut_lower, out=clipped).neg_().add_(1.0)).mul_(weights)
    metrics = {
        "clip_fraction": cut,
        "clip_fraction_lower": cut_lower,
        "kl": log_r.neg_(),
        "ratio": ratio,
    }
    return Tile(losses, gradient, metrics)


def _is_above(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return x > y as 0 and 1 of x's own type, in one step."""
    return torch.gt(x, y, out=torch.empty_like(x))


def _on_gpu(
    log_probs: torch.Tensor,
    old_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    weights: torch.Tensor | None,
    clip: tuple[float, float, float],
    max_log_ratio: float,
) -> tuple[torch.Tensor, Metrics]:
    from turnwise.algo.fast.ppo_kernel import ppo_terms

    gradient, totals = ppo_terms(
        log_probs, old_log_probs, advantages, mask, weights, clip, max_log_ratio
    )
    total, clip_fraction, clip_fraction_lower, kl, ratio, factor = totals.unbind()
    loss: torch.Tensor = _KernelLoss.apply(log_probs, (gradient, factor, total))  # type: ignore[no-untyped-call]
    metrics = {
        "clip_fraction": clip_fraction,
        "clip_fraction_lower": clip_fraction_lower,
        "kl": kl,
        "ratio": ratio,
    }
    return loss, metrics


class _KernelLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, log_probs: torch.Tensor, terms: tuple[torch.Tensor, ...]) -> torch.Tensor:
        gradient, factor, loss = terms
        ctx.save_for_backward(gradient, factor)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, None]:
        gradient, factor = ctx.saved_tensors
        return gradient * (grad_output * factor), None
