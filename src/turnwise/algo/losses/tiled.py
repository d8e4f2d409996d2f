"""Evaluate a token loss and its gradient tile by tile.

A loss over [B, T] log-probs is a chain of some twenty element-wise steps, and autograd keeps a
full-size tensor for nearly each. Here each tile of rows is differentiated on the spot, so that the
only full-size tensor that lives on is the gradient itself: several times faster on a CPU, a
fraction of the memory everywhere, and the losses stay plain torch code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch.autograd.function import once_differentiable

from turnwise.algo.masked import BatchTotals, LossAggregation, RowMask, as_mask, row_weights
from turnwise.algo.tiling import row_tiles

Metrics: TypeAlias = dict[str, torch.Tensor]
"""Scalars without a gradient; they print and compare as floats, and cost no transfer until read."""

TokenLoss: TypeAlias = Callable[..., tuple[torch.Tensor, Metrics]]
"""(variable, *constants, mask) -> (losses [b, T], per-token numbers to average).

All are rows of the batch in which masked tokens are 0; the mask is 0 and 1 as floats.
"""


def tiled_loss(
    token_loss: TokenLoss,
    variable: torch.Tensor,
    constants: tuple[torch.Tensor, ...],
    mask: torch.Tensor,
    mode: LossAggregation,
    totals: BatchTotals | None = None,
    importance_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, Metrics]:
    """Aggregate `token_loss` over the batch: (loss, mean of each per-token number).

    The gradient flows to `variable` [B, T] alone.
    """
    mask = as_mask(mask)
    work = _Work(token_loss, constants, mask, row_weights(mask, mode, totals), importance_weights)
    loss: torch.Tensor = _TiledLoss.apply(variable, work)  # type: ignore[no-untyped-call]
    num_tokens = mask.sum().clamp(min=1)
    return loss, {name: total / num_tokens for name, total in work.sums.items()}


class _Work:
    """What one evaluation needs, and the sums of per-token numbers that it leaves behind."""

    def __init__(
        self,
        token_loss: TokenLoss,
        constants: tuple[torch.Tensor, ...],
        mask: torch.Tensor,
        row_weights: torch.Tensor,
        importance_weights: torch.Tensor | None,
    ) -> None:
        self.token_loss = token_loss
        self.constants = [x.detach() for x in constants]
        self.mask = mask
        self.row_weights = row_weights
        self.importance_weights = importance_weights
        self.sums: Metrics = {}

    def run(self, variable: torch.Tensor, gradient: torch.Tensor | None) -> torch.Tensor:
        dtype = torch.promote_types(variable.dtype, torch.float32)
        loss = torch.zeros((), dtype=dtype, device=variable.device)
        for rows in row_tiles(variable):
            tile = RowMask(self.mask[rows], dtype)
            leaf = tile.keep(variable[rows].to(dtype)).requires_grad_(gradient is not None)
            constants = [tile.keep(x[rows].to(dtype)) for x in self.constants]
            weights = self._weights(rows, tile, dtype)
            with torch.set_grad_enabled(gradient is not None):
                losses, numbers = self.token_loss(leaf, *constants, tile.numbers)
                tile_loss = (losses * weights).sum()
            loss += tile_loss.detach()
            if gradient is not None:
                gradient[rows] = torch.autograd.grad(tile_loss, leaf)[0]
            for name, x in numbers.items():
                total = (x.detach() * tile.numbers).sum()
                self.sums[name] = self.sums[name] + total if name in self.sums else total
        return loss

    def _weights(self, rows: slice, tile: RowMask, dtype: torch.dtype) -> torch.Tensor:
        weights = self.row_weights[rows, None].to(dtype) * tile.numbers
        if self.importance_weights is not None:
            weights *= tile.keep(self.importance_weights[rows].detach().to(dtype))
        return weights


class _TiledLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, variable: torch.Tensor, work: _Work) -> torch.Tensor:
        gradient = torch.empty_like(variable) if ctx.needs_input_grad[0] else None
        loss = work.run(variable.detach(), gradient)
        if gradient is not None:
            ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * grad_output, None
