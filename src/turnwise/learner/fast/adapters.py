"""Linear layers with LoRA, x W + s (x A) B, with the adapters' product added by the matrix product.

As peft writes it, the product is written, scaled, and added in three more passes over the output,
which is a tenth of an update of a model of 7B.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import nn
from torch.autograd.function import once_differentiable

from turnwise.learner.fast.replaced import Replacement
from turnwise.models.adapters import is_adapted, is_mergeable


def lean_adapters(modules: Iterable[nn.Module]) -> list[Replacement]:
    """Return the linear layers with LoRA among modules, with forwards of fewer passes."""
    return [(module, partial(_adapted, module)) for module in modules if _is_plain_lora(module)]


def _is_plain_lora(layer: Any) -> bool:
    """Return whether a frozen linear layer has LoRA without dropout, in its own precision."""
    if not is_adapted(layer) or not is_mergeable(layer):
        return False
    base = layer.get_base_layer()
    adapters = [*layer.lora_A.values(), *layer.lora_B.values()]
    return (
        not any(parameter.requires_grad for parameter in base.parameters())
        and all(adapter.weight.dtype == base.weight.dtype for adapter in adapters)
        and not any(isinstance(dropout, nn.Dropout) for dropout in layer.lora_dropout.values())
    )


def _adapted(layer: Any, x: torch.Tensor) -> torch.Tensor:
    names = [name for name in layer.active_adapters if name in layer.lora_A]
    # Which adapters are active can change, and merged ones are in the weight.
    if layer.disable_adapters or layer.merged or len(names) != 1 or x.dtype != layer.weight.dtype:
        plain: torch.Tensor = type(layer).forward(layer, x)
        return plain
    (name,) = names
    base = layer.get_base_layer()
    lean: torch.Tensor = _AdaptedLinear.apply(  # type: ignore[no-untyped-call]
        *(x, base.weight, base.bias, layer.lora_A[name].weight, layer.lora_B[name].weight),
        layer.scaling[name],
    )
    return lean


class _AdaptedLinear(torch.autograd.Function):
    """A [rank, in], B [out, rank]; the weight and the bias are frozen."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        a: torch.Tensor,
        b: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        flat = x.flatten(0, -2)
        low = flat @ a.T
        output = F.linear(flat, weight, bias).addmm_(low, b.T, alpha=scale)
        ctx.save_for_backward(x, weight, a, b, low)
        ctx.scale = scale
        return output.view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, a, b, low = ctx.saved_tensors
        flat, slope = x.flatten(0, -2), gradient.flatten(0, -2)
        to_low = (slope @ b).mul_(ctx.scale)
        to_x = None
        if ctx.needs_input_grad[0]:
            to_x = (slope @ weight).addmm_(to_low, a).view(x.shape)
        to_a = to_low.T @ flat if ctx.needs_input_grad[3] else None
        to_b = (slope.T @ low).mul_(ctx.scale) if ctx.needs_input_grad[4] else None
        return to_x, None, None, to_a, to_b, None
