"""RMS norms as one kernel while learning on a GPU.

Transformers writes them as six steps in float32, each of which keeps a tensor for the backward: on
a small model a third of the time and a fifth of the memory. A norm is replaced only if it computes
the same numbers; some of that name add 1 to their weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name


@torch.no_grad()
def replaceable_norms(model: Any) -> list[Any]:
    """The norms of a model that one kernel can stand in for."""
    return [
        module
        for module in model.modules()
        if type(module).__name__.endswith("RMSNorm")
        and hasattr(module, "variance_epsilon")
        and _can_replace(module)
    ]


@contextmanager
def fused_norms(norms: Sequence[Any]) -> Iterator[None]:
    """Replace the forward of these norms inside the block."""
    try:
        for norm in norms:
            norm.forward = _fused(norm)
        yield
    finally:
        for norm in norms:
            norm.__dict__.pop("forward", None)


def _fused(norm: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    def forward(hidden: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(hidden, norm.weight.shape, norm.weight, norm.variance_epsilon)

    return forward


def _can_replace(norm: Any) -> bool:
    width = norm.weight.shape[0]
    probe = torch.linspace(-3.0, 4.0, width).to(norm.weight)
    expected = norm(probe[None]).float()
    got = _fused(norm)(probe[None]).float()
    tolerance = 1e-5 if norm.weight.dtype in (torch.float32, torch.float64) else 2e-2
    return bool((got - expected).abs().max() <= tolerance * (1.0 + expected.abs().max()))
