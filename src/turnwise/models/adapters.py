"""LoRA adapters in the layers of a model, as peft puts them there; peft itself is not imported."""

from typing import Any

import torch
from torch import nn

from turnwise.models.rounding import round_merged, round_weight, threshold_key


def adapted_layers(model: nn.Module) -> dict[str, Any]:
    """Return the layers of a model that have adapters, by name."""
    return {name: module for name, module in model.named_modules() if is_adapted(module)}


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


def adapter(layer: Any) -> tuple[torch.Tensor, torch.Tensor, float] | None:
    """Return A, B and their scale of a mergeable layer with one active adapter; None of others."""
    if not is_mergeable(layer) or layer.disable_adapters:
        return None
    names = [name for name in layer.active_adapters if name in layer.lora_A]
    if len(names) != 1:
        return None
    return layer.lora_A[names[0]].weight, layer.lora_B[names[0]].weight, layer.scaling[names[0]]


@torch.no_grad()
def merged_weight(layer: Any, name: str) -> torch.Tensor:
    """Return the weight of a named layer with its adapters, rounded by its thresholds."""
    weight, key = layer.get_base_layer().weight.detach(), threshold_key(f"{name}.weight")
    if (parts := adapter(layer)) is not None:
        return round_merged(weight, *parts, key)
    merged = weight.to(torch.promote_types(weight.dtype, torch.float32))
    for active in () if layer.disable_adapters else layer.active_adapters:
        merged = merged + layer.get_delta_weight(active).to(merged.dtype)
    return round_weight(merged, weight.dtype, key)
