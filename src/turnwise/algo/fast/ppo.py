"""PPO's clipped loss with a hand-written gradient; `losses/ppo.py` has the formula.

In place on a CPU, one Triton kernel on a GPU. The tests compare both with autograd.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch.autograd.function import once_differentiable

from turnwise.algo.fast.tiled_loss import Tile, tiled_loss
from turnwise.algo.fast.tiles import has_kernels
from turnwise.algo.losses.policy import MAX_LOG_RATIO, LossOptions
from turnwise.algo.masked import as_mask, row_weights
from turnwise.algo.types import TensorMetrics

Clip: TypeAlias = tuple[float, float, float]
"""(1 − ε_low, 1 + ε_high, c)."""
_METRICS = ("clip_fraction", "clip_fraction_lower", "kl", "ratio")


def ppo_loss(
    old_log_probs: torch.Tensor,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    clip: Clip,
    options: LossOptions,
) -> tuple[torch.Tensor, TensorMetrics]:
    """Return the loss and its metrics."""
    mask = as_mask(response_mask)
    mode, totals = options.get("loss_agg_mode", "token-mean"), options.get("totals")
    importance_weights = options.get("importance_weights")
    if importance_weights is None and has_kernels(log_probs):
        is_mean = mode == "token-mean" and (totals is None or not totals.num_tokens)
        weights = None if is_mean else row_weights(mask, mode, totals)
        return _on_gpu(log_probs, old_log_probs, advantages, mask, weights, clip)
    return tiled_loss(
        partial(_tile, clip=clip),
        log_probs,
        (old_log_probs, advantages),
        mask,
        row_weights(mask, mode, totals),
        importance_weights,
    )


def _tile(
    inputs: Sequence[torch.Tensor],
    mask: torch.Tensor,
    weights: torch.Tensor,
    needs_gradient: bool,
    clip: Clip,
) -> Tile:
    """Evaluate a few rows in place: on a large batch, memory traffic is most of the cost."""
    log_probs, old_log_probs, advantages = inputs
    lowest, highest, dual = clip
    log_r = log_probs.sub_(old_log_probs).clamp_(-MAX_LOG_RATIO, MAX_LOG_RATIO)
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
    # dr / d log π = r; where the clip or the bound took over, the gradient is 0.
    gradient = unclipped.mul_(torch.add(cut, cut_lower, out=clipped).neg_().add_(1.0)).mul_(weights)
    metrics = dict(zip(_METRICS, (cut, cut_lower, log_r.neg_(), ratio), strict=True))
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
    clip: Clip,
) -> tuple[torch.Tensor, TensorMetrics]:
    from turnwise.algo.fast.ppo_kernel import ppo_terms

    gradient, totals = ppo_terms(
        log_probs, old_log_probs, advantages, mask, weights, clip, MAX_LOG_RATIO
    )
    total, *means, factor = totals.unbind()
    loss: torch.Tensor = _KernelLoss.apply(log_probs, (gradient, factor, total))  # type: ignore[no-untyped-call]
    return loss, dict(zip(_METRICS, means, strict=True))


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
