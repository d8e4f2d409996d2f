"""LoRA adapters in the layers of a model, as peft puts them there; peft itself is not imported."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def adapted_layers(model: nn.Module) -> list[Any]:
    """Return the layers of a model that have adapters."""
    return [module for module in model.modules() if is_adapted(module)]


def is_adapted(module: nn.Module) -> bool:
    return hasattr(module, "enable_adapters") and hasattr(module, "adapter_layer_names")


def is_mergeable(layer: Any) -> bool:
    """Return whether a layer is linear, or linear with adapters that add a product of two matrices.

    Variants of LoRA, such as DoRA, compute something else; a quantised weight cannot be added to.
    """
    if type(layer) is nn.Linear:
        return True
    return (
        is_adapted(layer)
        and type(layer.get_base_layer()) is nn.Linear
        and hasattr(layer, "lora_A")
        and not layer.merged
        and not getattr(layer, "lora_variant", None)
        and not any(getattr(layer, "use_dora", {}).values())
        and not any(getattr(layer, "lora_bias", {}).values())
    )


@torch.no_grad()
def merged_weight(layer: Any) -> torch.Tensor:
    """Return W + Σ scaling · B A of a layer with adapters, summed in float32 at least."""
    weight = layer.get_base_layer().weight
    wide = torch.promote_types(weight.dtype, torch.float32)
    merged: torch.Tensor = weight.detach().to(wide)
    for name in () if layer.disable_adapters else layer.active_adapters:
        if not is_mergeable(layer):
            merged = merged + layer.get_delta_weight(name).to(wide)
        elif name in layer.lora_A:
            low, high = layer.lora_A[name].weight.to(wide), layer.lora_B[name].weight.to(wide)
            merged = torch.addmm(merged, high, low, alpha=layer.scaling[name])
    return merged
