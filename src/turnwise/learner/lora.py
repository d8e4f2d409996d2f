"""LoRA through peft: small trained matrices next to frozen weights.

The adapters are put into the model's own layers, so that engine and learner still share its
modules; the reference model is the same model with the adapters disabled.

Engines sample with W + s·BA, rounded to half precision by the thresholds of W. Computed as
x W + s (x A) B, the same tokens would have other log-probs, and the gap grows as adapters learn. So
the learner computes layers in half precision with the weights that engines sample with. The merged
weight exists only while its layer is computed; gradients pass the rounding unchanged.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import nn
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor

from turnwise.config import TrainingConfig
from turnwise.errors import ConfigError, import_extra
from turnwise.learner.fast.modules import Replacement
from turnwise.learner.sharding import as_shard, first_element, local_shard
from turnwise.models.adapters import adapted_layers, adapter, is_mergeable, merged_weight
from turnwise.models.attention import model_lock
from turnwise.models.rounding import HALF, round_merged, threshold_key


def add_lora(
    model: Any,
    rank: int,
    *,
    alpha: int | None = None,
    target_modules: str | Sequence[str] = "all-linear",
    dropout: float = 0.0,
    use_rslora: bool = False,
) -> Any:
    """Freeze a model, add adapters to its layers, and return it. `alpha` is 2 · rank by default."""
    if rank < 1:
        raise ConfigError(f"lora_rank got {rank}, expected a number from 1 up")
    peft = import_extra("peft", "peft")
    targets = target_modules if isinstance(target_modules, str) else list(target_modules)
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=default_alpha(rank) if alpha is None else alpha,
        target_modules=targets,
        lora_dropout=dropout,
        use_rslora=use_rslora,
        task_type="CAUSAL_LM",
    )
    try:
        model.add_adapter(config)
    except ValueError as error:  # before anything was changed
        linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
        names = sorted({name.rpartition(".")[2] for name in linear})
        raise ConfigError(
            f"training.lora_target_modules got {targets!r}, and the model has no such layers. Its "
            f"linear layers are: {', '.join(names)}."
        ) from error
    for name, parameter in model.named_parameters():
        if ".lora_" not in name:
            parameter.requires_grad_(False)
    return model


def add_configured_lora(model: Any, training: TrainingConfig) -> None:
    """Add the adapters of the settings; a `lora_rank` of 0 means none."""
    if not training.lora_rank:
        refuse_lora_settings(training)
        return
    add_lora(
        model,
        training.lora_rank,
        alpha=training.lora_alpha,
        target_modules=training.lora_target_modules,
        dropout=training.lora_dropout,
        use_rslora=training.use_rslora,
    )


def refuse_lora_settings(training: TrainingConfig) -> None:
    """Raise if a LoRA setting is given and `lora_rank` is 0."""
    defaults = TrainingConfig()
    for name in ("lora_alpha", "lora_target_modules", "lora_dropout", "use_rslora"):
        if (value := getattr(training, name)) != getattr(defaults, name):
            raise ConfigError(
                f"training.{name} got {value!r}, and there are no adapters: training.lora_rank is "
                "0. Set training.lora_rank, for example to 16."
            )


def default_alpha(rank: int) -> int:
    """Return LoRA's alpha where none is given."""
    return 2 * rank


@contextmanager
def adapter_dropout(model: Any, seed: int) -> Iterator[None]:
    """Enable the dropout of a learner's adapters with this seed; all other dropout stays off.

    The backward must be inside the block too, since gradient checkpointing computes layers again.
    """
    layers = dropout_layers(model)
    # An engine may compute with the same adapters.
    with model_lock(model.policy), torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            for layer in layers:
                layer.train()
            yield
        finally:
            for layer in layers:
                layer.eval()


def has_adapters(model: Any) -> bool:
    """Whether there are adapters in a model's layers."""
    return bool(adapted_layers(model))


@contextmanager
def without_adapters(model: Any) -> Iterator[None]:
    """Disable the adapters inside the block."""
    layers = adapted_layers(model).values()
    try:
        for layer in layers:
            layer.enable_adapters(False)
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def merge_lora(model: Any) -> Any:
    """Merge the adapters into the weights and remove them, in place; return the model."""
    for name, layer in adapted_layers(model).items():
        weight = layer.get_base_layer().weight
        weight.data.copy_(_merged_parameter(layer, name))
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, layer.get_base_layer())
    for mark in ("_hf_peft_config_loaded", "peft_config"):
        if mark in vars(model):
            delattr(model, mark)
    return model


@torch.no_grad()
def merged_weights(model: Any) -> dict[str, torch.Tensor]:
    """Return the weights with the adapters merged in; the model stays as it is."""
    weights = {
        name.replace(".base_layer.", "."): tensor
        for name, tensor in model.state_dict().items()
        if ".lora_" not in name
    }
    for name, layer in adapted_layers(model).items():
        weights[f"{name}.weight"] = _merged_parameter(layer, name)
    return weights


@torch.no_grad()
def _merged_parameter(layer: Any, name: str) -> torch.Tensor:
    """Return the merged weight of a layer; of a sharded one, made of the shards."""
    weight = layer.get_base_layer().weight
    parts = adapter(layer)
    if parts is None or not isinstance(parts[0], DTensor):
        return merged_weight(layer, name)
    low, high, scale = parts
    rounded = round_merged(
        local_shard(weight),
        low.full_tensor(),
        local_shard(high),
        scale,
        threshold_key(f"{name}.weight"),
        first=first_element(weight),
    )
    return as_shard(rounded, weight)


def dropout_layers(model: nn.Module) -> list[nn.Module]:
    """Return the layers with a dropout above 0 in the adapters of a model."""
    layers = adapted_layers(model).values()
    dropouts = (layer for one in layers for layer in getattr(one, "lora_dropout", {}).values())
    return [layer for layer in dropouts if isinstance(layer, nn.Dropout)]


def merged_adapters(model: nn.Module) -> list[Replacement]:
    """Return the layers that are computed with merged adapters, and their forwards.

    They are frozen linear layers with LoRA without dropout, all in half precision.
    """
    replacements: list[Replacement] = []
    for name, layer in adapted_layers(model).items():
        if not is_mergeable(layer) or dropout_layers(layer):
            continue
        base = layer.get_base_layer()
        adapters = [*layer.lora_A.values(), *layer.lora_B.values()]
        dtypes = {base.weight.dtype, *(adapter.weight.dtype for adapter in adapters)}
        is_frozen = not any(parameter.requires_grad for parameter in base.parameters())
        if base.weight.dtype in HALF and len(dtypes) == 1 and is_frozen:
            replacements.append((layer, partial(_merged_forward, layer, name)))
    return replacements


def _merged_forward(layer: Any, name: str, x: torch.Tensor) -> torch.Tensor:
    parts = adapter(layer)
    # Which adapters are active can change: a reference is computed without them.
    if parts is None or x.dtype not in HALF:
        return type(layer).forward(layer, x)  # type: ignore[no-any-return]
    base = layer.get_base_layer()
    merged = merged_weight(layer, name)
    output: torch.Tensor = _MergedLinear.apply(  # type: ignore[no-untyped-call]
        x, merged, base.weight, base.bias, *parts
    )
    return output


class _MergedLinear(torch.autograd.Function):
    """The forward has the merged weight, the backward W [out, in], A [rank, in], B [out, rank].

    Keeping the merged weight for the backward would take as much memory as the model.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        merged: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        a: torch.Tensor,
        b: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight, a, b)
        ctx.scale = scale
        return F.linear(x, merged, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, a, b = ctx.saved_tensors
        flat, slope = x.flatten(0, -2), gradient.flatten(0, -2)
        to_low = (slope @ b).mul_(ctx.scale)
        to_x = None
        if ctx.needs_input_grad[0]:
            to_x = (slope @ weight).addmm_(to_low, a).view(x.shape)
        to_a = to_low.T @ flat if ctx.needs_input_grad[4] else None
        to_b = (slope.T @ (flat @ a.T)).mul_(ctx.scale) if ctx.needs_input_grad[5] else None
        return to_x, None, None, None, to_a, to_b, None
