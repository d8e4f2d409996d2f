"""The modules of a model that have a faster forward for learning.

A module is replaced only if a probe computes the same numbers; its class name is no proof.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule

from turnwise.learner.fast.adapters import lean_adapters
from turnwise.learner.fast.gated_mlp import lean_mlps
from turnwise.learner.fast.replaced import Replacement
from turnwise.learner.fast.rms_norm import fused_norms
from turnwise.learner.fast.rotary import fused_rotary
from turnwise.plain_mode import is_plain


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
            if not is_plain("learner.adapters"):
                found += lean_adapters(modules)
            if not is_plain("learner.gated_mlp"):
                found += lean_mlps(modules)
            if model.device.type == "cuda" and not is_plain("learner.rms_norm"):
                found += fused_norms(modules)
            if not is_plain("learner.rotary"):
                found += fused_rotary(modules)
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
