"""LoRA through peft: small trained matrices beside frozen weights.

The adapters are put into the model's own layers, so that engine and learner go on sharing its
modules; the reference model is the same one with the adapters off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from turnwise.errors import ConfigError, import_extra


def add_lora(
    model: Any,
    rank: int,
    *,
    alpha: float | None = None,
    target_modules: str | Sequence[str] = "all-linear",
) -> Any:
    """Freeze a model and give it adapters; the same model. α is 2 · rank unless it is said."""
    if rank < 1:
        raise ConfigError(f"lora_rank got {rank}, expected a number from 1 up")
    peft = import_extra("peft", "peft")
    targets = target_modules if isinstance(target_modules, str) else list(target_modules)
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=2 * rank if alpha is None else alpha,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model.add_adapter(config)
    return model


def has_adapters(model: Any) -> bool:
    """Whether there are adapters in a model's layers, whoever put them there."""
    return bool(_adapted_layers(model))


@contextmanager
def without_adapters(model: Any) -> Iterator[None]:
    """The model as it was before its adapters."""
    layers = _adapted_layers(model)
    try:
        for layer in layers:
            layer.enable_adapters(False)
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def merge_lora(model: Any) -> Any:
    """Add the adapters to the weights and take them out: a plain model again, the same one."""
    for name, layer in _adapted_layers_by_name(model):
        layer.merge()
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, layer.get_base_layer())
    for mark in ("_hf_peft_config_loaded", "peft_config"):
        if mark in vars(model):
            delattr(model, mark)
    return model


@torch.no_grad()
def merged_weights(model: Any) -> dict[str, torch.Tensor]:
    """The weights of the plain model that the adapters make of this one, which stays as it is."""
    layers = dict(_adapted_layers_by_name(model))
    weights = {}
    for name, tensor in model.state_dict().items():
        owner, _, rest = name.partition(".base_layer.")
        if ".lora_" in name:
            continue
        merged = tensor
        if rest == "weight" and owner in layers:
            layer = layers[owner]
            for adapter in layer.active_adapters:
                merged = merged + layer.get_delta_weight(adapter).to(tensor.dtype)
        weights[f"{owner}.{rest}" if rest else name] = merged
    return weights


def _adapted_layers_by_name(model: Any) -> list[tuple[str, Any]]:
    adapted = {id(layer) for layer in _adapted_layers(model)}
    return [(name, module) for name, module in model.named_modules() if id(module) in adapted]


def _adapted_layers(model: Any) -> list[Any]:
    # Without looking into peft, which need not be installed where there are no adapters.
    return [
        module
        for module in model.modules()
        if hasattr(module, "enable_adapters") and hasattr(module, "adapter_layer_names")
    ]
