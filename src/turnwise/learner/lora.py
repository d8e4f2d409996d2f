"""LoRA through peft: small trained matrices beside frozen weights.

The adapters are put into the model's own layers, so that engine and learner go on sharing its
modules; the reference model is the same one with the adapters off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

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


def _adapted_layers(model: Any) -> list[Any]:
    # Without looking into peft, which need not be installed where there are no adapters.
    return [
        module
        for module in model.modules()
        if hasattr(module, "enable_adapters") and hasattr(module, "adapter_layer_names")
    ]
