"""Gated MLPs, silu(x G) * (x U) D, that save less for the backward.

Autograd would save the gate, its silu, the other half, and their product. The silu and the product
are cheap to compute again, and are a quarter of all that a layer saves: so larger packs fit into
memory. With adapters on D the product is saved, since the gradient of the adapters needs it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import nn
from torch.autograd.function import once_differentiable

from turnwise.learner.fast.kernels import load_kernels
from turnwise.learner.fast.replaced import Replacement
from turnwise.models.adapters import is_adapted
from turnwise.plain_mode import is_plain


@torch.no_grad()
def lean_mlps(modules: Iterable[nn.Module]) -> list[Replacement]:
    """Return the gated MLPs among modules, with forwards that save less."""
    return [(module, partial(_lean_mlp, module)) for module in modules if _is_gated_mlp(module)]


def _lean_mlp(mlp: Any, x: torch.Tensor) -> torch.Tensor:
    gate, up = mlp.gate_proj(x), mlp.up_proj(x)
    down: torch.Tensor
    if type(mlp.down_proj) is nn.Linear:
        down = _GatedDown.apply(gate, up, mlp.down_proj.weight)  # type: ignore[no-untyped-call]
    else:
        down = mlp.down_proj(_Gated.apply(gate, up))  # type: ignore[no-untyped-call]
    return down


def _is_gated_mlp(module: Any) -> bool:
    linear: list[Any] = [
        getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")
    ]
    if not all(isinstance(layer, nn.Module) for layer in linear):
        return False
    bases = [layer.get_base_layer() if is_adapted(layer) else layer for layer in linear]
    if not all(type(base) is nn.Linear and base.bias is None for base in bases):
        return False
    if type(getattr(module, "act_fn", None)).__name__ not in ("SiLU", "SiLUActivation"):
        return False
    weight = bases[0].weight
    # Two tokens, as a batch of one: a module of the user's own may mix them.
    x = torch.linspace(-1.0, 2.0, 2 * weight.shape[1]).to(weight).view(1, 2, -1)
    gate, up, down = linear
    return bool(torch.equal(module(x), down(F.silu(gate(x)) * up(x))))


def _kernels_for(x: torch.Tensor) -> Any:
    """Return the module of the kernels, or None where torch computes."""
    if not x.is_cuda or x.dtype not in (torch.bfloat16, torch.float16):
        return None
    if is_plain("learner.gated_kernels"):
        return None
    return load_kernels("gated_kernels", x.dtype, x.device)


def _product(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    kernels = _kernels_for(gate)
    if kernels is None:
        return F.silu(gate).mul_(up)
    product: torch.Tensor = kernels.forward(gate.contiguous(), up.contiguous())
    return product


def _gradients(
    gradient: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, *, with_product: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return the gradients of gate and up, and the product again; `gradient` may be overwritten."""
    kernels = _kernels_for(gate)
    if kernels is not None:
        tensors = (x.contiguous() for x in (gradient, gate, up))
        found: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]
        found = kernels.backward(*tensors, with_product=with_product)
        return found
    opened = F.silu(gate)
    product = opened * up if with_product else None
    to_up = opened.mul_(gradient)
    return torch.ops.aten.silu_backward(gradient * up, gate), to_up, product


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate, up)
        return _product(gate, up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return _gradients(gradient, *ctx.saved_tensors, with_product=False)[:2]


class _GatedDown(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, gate: torch.Tensor, up: torch.Tensor, weight: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(gate, up, weight)
        return F.linear(_product(gate, up), weight)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, gradient: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        gate, up, weight = ctx.saved_tensors
        wants_weight = ctx.needs_input_grad[2]
        to_gate, to_up, product = _gradients(gradient @ weight, gate, up, with_product=wants_weight)
        if product is None:
            return to_gate, to_up, None
        return to_gate, to_up, gradient.flatten(0, -2).T @ product.flatten(0, -2)
