"""Linear layers with LoRA in half precision, computed with the weights that engines sample with.

Engines sample with W + s·BA, rounded to half precision by the thresholds of W. Computed as
x W + s (x A) B, the same tokens would have other log-probs, and the gap grows as adapters learn.
The merged weight exists only while its layer is computed; gradients pass the rounding unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import nn
from torch.autograd.function import once_differentiable

from turnwise.learner.fast.modules import Replacement
from turnwise.models.adapters import is_adapted, is_mergeable, merged_weight
from turnwise.models.rounding import HALF, round_weight, threshold_key


def merged_adapters(modules: Mapping[str, nn.Module]) -> list[Replacement]:
    """Return the layers among named modules that can be computed with merged adapters."""
    return [
        (module, partial(_merged_forward, module, threshold_key(f"{name}.weight")))
        for name, module in modules.items()
        if _is_merged(module)
    ]


def _is_merged(layer: Any) -> bool:
    """Return whether a frozen linear layer has LoRA without dropout, all in half precision."""
    if not is_adapted(layer) or not is_mergeable(layer):
        return False
    base = layer.get_base_layer()
    adapters = [*layer.lora_A.values(), *layer.lora_B.values()]
    return (
        base.weight.dtype in HALF
        and not any(parameter.requires_grad for parameter in base.parameters())
        and all(adapter.weight.dtype == base.weight.dtype for adapter in adapters)
        and not any(isinstance(dropout, nn.Dropout) for dropout in layer.lora_dropout.values())
    )


def _merged_forward(layer: Any, key: int, x: torch.Tensor) -> torch.Tensor:
    adapters = [name for name in layer.active_adapters if name in layer.lora_A]
    # Which adapters are active can change: a reference is computed without them.
    if layer.disable_adapters or layer.merged or len(adapters) != 1 or x.dtype not in HALF:
        unmerged: torch.Tensor = type(layer).forward(layer, x)
        return unmerged
    (name,) = adapters
    base = layer.get_base_layer()
    rounded = round_weight(merged_weight(layer), base.weight.dtype, key)
    output: torch.Tensor = _MergedLinear.apply(  # type: ignore[no-untyped-call]
        x,
        rounded,
        base.weight,
        base.bias,
        layer.lora_A[name].weight,
        layer.lora_B[name].weight,
        layer.scaling[name],
    )
    return output


class _MergedLinear(torch.autograd.Function):
    """The forward has the merged weight, the backward W [out, in], A [rank, in], B [out, rank].

    Keeping the merged weight for the backward would take as much memory as the model.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        merged: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        a: torch.Tensor,
        b: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight, a, b)
        ctx.scale = scale
        return F.linear(x, merged, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, a, b = ctx.saved_tensors
        flat, slope = x.flatten(0, -2), gradient.flatten(0, -2)
        to_low = (slope @ b).mul_(ctx.scale)
        to_x = None
        if ctx.needs_input_grad[0]:
            to_x = (slope @ weight).addmm_(to_low, a).view(x.shape)
        to_a = to_low.T @ flat if ctx.needs_input_grad[4] else None
        to_b = (slope.T @ (flat @ a.T)).mul_(ctx.scale) if ctx.needs_input_grad[5] else None
        return to_x, None, None, None, to_a, to_b, None
