"""RMS norms as one kernel.

Transformers writes them as six operations in float32, each of which saves a tensor for the
backward: on a small model a third of the time and a fifth of the memory. In half precision our own
kernel is used, whose backward reads memory once (`rms_norm_kernels.py`).
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


@torch.no_grad()
def fused_norms(modules: Iterable[nn.Module]) -> list[Replacement]:
    """Return the RMS norms among some modules that one kernel can compute.

    Some norms of that name add 1 to their weights; these are left alone.
    """
    return [
        (module, partial(_fused_norm, module))
        for module in modules
        if type(module).__name__.endswith("RMSNorm")
        and hasattr(module, "variance_epsilon")
        and _is_rms_norm(module)
    ]


def _fused_norm(norm: Any, hidden: torch.Tensor) -> torch.Tensor:
    weight, epsilon = norm.weight, norm.variance_epsilon
    kernels = _kernels_for(hidden, weight)
    if kernels is None:
        return F.rms_norm(hidden, weight.shape, weight, epsilon)
    normed: torch.Tensor = _Norm.apply(hidden, weight, epsilon, kernels)  # type: ignore[no-untyped-call]
    return normed


def _kernels_for(hidden: torch.Tensor, weight: torch.Tensor) -> Any:
    """Return the module of the kernels, or None where torch computes."""
    if not hidden.is_cuda or hidden.dtype not in (torch.bfloat16, torch.float16):
        return None
    kernels = load_kernels("rms_norm_kernels", hidden.dtype, hidden.device)
    fits = hidden.dtype == weight.dtype and kernels is not None and len(weight) <= kernels.WIDEST
    return kernels if fits else None


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, epsilon: float, kernels: Any
    ) -> torch.Tensor:
        hidden = hidden.contiguous()
        normed: torch.Tensor
        normed, scales = kernels.forward(hidden, weight, epsilon)
        ctx.save_for_backward(hidden, weight, scales)
        ctx.kernels = kernels
        return normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return *ctx.kernels.backward(gradient.contiguous(), *ctx.saved_tensors), None, None


def _is_rms_norm(norm: Any) -> bool:
    probe = torch.linspace(-3.0, 4.0, norm.weight.shape[0]).to(norm.weight)[None]
    expected, got = norm(probe).float(), _fused_norm(norm, probe).float()
    tolerance = 1e-5 if norm.weight.dtype in (torch.float32, torch.float64) else 2e-2
    return bool((got - expected).abs().max() <= tolerance * (1.0 + expected.abs().max()))
