"""Gated MLPs that keep less for their gradient.

silu(x G) * (x U) D: torch would keep the gate, what silu made of it, the product with the other
half, and that half. The two in the middle follow from the others at little cost, and are a quarter
of all that a layer keeps: so much more fits into one forward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import nn
from torch.autograd.function import once_differentiable


def replaceable_mlps(model: Any) -> list[Any]:
    """The MLPs of a model that are of this kind: plain linear parts without a bias, and silu."""
    return [module for module in model.modules() if _can_replace(module)]


@contextmanager
def lean_mlps(mlps: Sequence[Any]) -> Iterator[None]:
    """Replace the forward of these MLPs inside the block."""
    try:
        for mlp in mlps:
            mlp.forward = _lean(mlp)
        yield
    finally:
        for mlp in mlps:
            mlp.__dict__.pop("forward", None)


def _lean(mlp: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    def forward(x: torch.Tensor) -> torch.Tensor:
        down: torch.Tensor = _GatedDown.apply(  # type: ignore[no-untyped-call]
            mlp.gate_proj(x), mlp.up_proj(x), mlp.down_proj.weight
        )
        return down

    return forward


def _can_replace(module: Any) -> bool:
    parts = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    return (
        all(type(part) is nn.Linear and part.bias is None for part in parts)
        and type(getattr(module, "act_fn", None)).__name__ in ("SiLU", "SiLUActivation")
        and _computes_so(module)
    )


@torch.no_grad()
def _computes_so(mlp: Any) -> bool:
    """Return whether both forwards give the same numbers; a name proves nothing."""
    weight = mlp.gate_proj.weight
    probe = torch.linspace(-1.0, 2.0, weight.shape[1]).to(weight)[None]
    return bool(torch.equal(mlp(probe), _lean(mlp)(probe)))


class _GatedDown(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, gate: torch.Tensor, up: torch.Tensor, weight: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(gate, up, weight)
        return F.linear(F.silu(gate).mul_(up), weight)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, gradient: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
        gate, up, weight = ctx.saved_tensors
        opened = F.silu(gate)
        inner = gradient @ weight
        to_weight = None
        if ctx.needs_input_grad[2]:
            to_weight = gradient.flatten(0, -2).T @ (opened * up).flatten(0, -2)
        to_up = opened.mul_(inner)
        to_gate = torch.ops.aten.silu_backward(inner.mul_(up), gate)
        return to_gate, to_up, to_weight
