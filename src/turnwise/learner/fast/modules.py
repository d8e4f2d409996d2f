"""Faster forwards for modules of a model, which it has only inside `replaced_forwards`.

A module is replaced only if a probe computes the same numbers; its class name is no proof.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import nn
from torch.autograd.function import once_differentiable
from torch.distributed.fsdp import FSDPModule

from turnwise.plain_mode import is_plain

Replacement: TypeAlias = tuple[Any, Callable[[torch.Tensor], torch.Tensor]]
"""A module, and the forward that replaces its own."""


@contextmanager
def replaced_forwards(replacements: Sequence[Replacement]) -> Iterator[None]:
    """Replace the forwards of these modules inside the block."""
    before = [vars(module).get("forward") for module, _ in replacements]
    try:
        for module, forward in replacements:
            module.forward = forward
        yield
    finally:
        for (module, _), outer in zip(replacements, before, strict=True):
            del module.forward
            if outer is not None:  # a replacement around this one
                module.forward = outer


def faster_modules(model: Any, layers: Sequence[nn.Module]) -> list[Replacement]:
    """Return the modules of a model that can be computed faster on its device.

    Those of one layer are compared at a time: the layers of a sharded model are gathered for it.
    """
    in_layers = {module for layer in layers for module in layer.modules()}
    rest = [module for module in model.modules() if module not in in_layers]
    found: list[Replacement] = []
    for layer in (None, *layers):
        modules = rest if layer is None else list(layer.modules())
        with _gathered(layer):
            if not is_plain("learner.gated_mlp"):
                found += lean_mlps(modules)
            if model.device.type == "cuda" and not is_plain("learner.rms_norm"):
                found += fused_norms(modules)
    return found


@contextmanager
def _gathered(layer: Any) -> Iterator[None]:
    """Gather the parameters of a sharded layer inside the block."""
    if not isinstance(layer, FSDPModule):
        yield
        return
    layer.unshard()
    try:
        yield
    finally:
        layer.reshard()


@torch.no_grad()
def fused_norms(modules: Iterable[nn.Module]) -> list[Replacement]:
    """Return the RMS norms among some modules that one kernel can compute.

    Transformers writes them as six operations in float32, each of which saves a tensor for the
    backward: on a small model a third of the time and a fifth of the memory. Some norms of that
    name add 1 to their weights; these are left alone.
    """
    return [
        (module, partial(_fused_norm, module))
        for module in modules
        if type(module).__name__.endswith("RMSNorm")
        and hasattr(module, "variance_epsilon")
        and _is_rms_norm(module)
    ]


def _fused_norm(norm: Any, hidden: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(hidden, norm.weight.shape, norm.weight, norm.variance_epsilon)


def _is_rms_norm(norm: Any) -> bool:
    probe = torch.linspace(-3.0, 4.0, norm.weight.shape[0]).to(norm.weight)[None]
    expected, got = norm(probe).float(), _fused_norm(norm, probe).float()
    tolerance = 1e-5 if norm.weight.dtype in (torch.float32, torch.float64) else 2e-2
    return bool((got - expected).abs().max() <= tolerance * (1.0 + expected.abs().max()))


@torch.no_grad()
def lean_mlps(modules: Iterable[nn.Module]) -> list[Replacement]:
    """Return the gated MLPs among modules, silu(x G) * (x U) D, with forwards that save less.

    Autograd would save the gate, its silu, the other half, and their product. The silu and the
    product are cheap to compute again, and are a quarter of all that a layer saves: so larger
    packs fit into memory.
    """
    return [(module, partial(_lean_mlp, module)) for module in modules if _is_gated_mlp(module)]


def _lean_mlp(mlp: Any, x: torch.Tensor) -> torch.Tensor:
    down: torch.Tensor = _GatedDown.apply(  # type: ignore[no-untyped-call]
        mlp.gate_proj(x), mlp.up_proj(x), mlp.down_proj.weight
    )
    return down


def _is_gated_mlp(module: Any) -> bool:
    linear = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    if not all(type(layer) is nn.Linear and layer.bias is None for layer in linear):
        return False
    if type(getattr(module, "act_fn", None)).__name__ not in ("SiLU", "SiLUActivation"):
        return False
    weight = module.gate_proj.weight
    probe = torch.linspace(-1.0, 2.0, weight.shape[1]).to(weight)[None]
    return bool(torch.equal(module(probe), _lean_mlp(module, probe)))


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
