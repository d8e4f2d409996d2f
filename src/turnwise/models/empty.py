"""Models without weights: their parameters are on torch's meta device, and take no memory.

Each of several learners builds such a model, keeps a shard of every parameter, and reads this shard
alone from the files. So no process ever has all weights.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from turnwise.models.load import model_folder, readable_errors, resolve_device, resolve_dtype
from turnwise.models.rounding import round_weight, threshold_key
from turnwise.models.weight_files import NotLoadableInParts, WeightFiles, stored_names


def load_empty_model(
    name_or_path: str | os.PathLike[str],
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
    trust_remote_code: bool = False,
) -> Any:
    """Return a model without weights, which knows their files and the device they belong on.

    Buffers, such as the frequencies of rotary embeddings, have their values. Raises
    `NotLoadableInParts` if the files do not hold the parameters as they are.
    """
    if name_or_path == "tiny":
        raise NotLoadableInParts("tiny has no files")
    from transformers import AutoConfig, AutoModelForCausalLM

    target = resolve_device(device)
    source = model_folder(name_or_path)
    with readable_errors(name_or_path), _parameters_on_meta():
        config = AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code)
        model: Any = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, dtype=resolve_dtype(dtype, target), trust_remote_code=trust_remote_code
        )
    if getattr(config, "quantization_config", None) is not None:
        raise NotLoadableInParts("its weights are quantised")
    # transformers keeps some weights of a half-precision model in float32.
    keeps = [model._keep_in_fp32_modules_strict, model._keep_in_fp32_modules]
    keeps_some = {torch.bfloat16: any(keeps[:1]), torch.float16: any(keeps)}
    if keeps_some.get(model.dtype) or len({p.dtype for p in model.parameters()}) > 1:
        raise NotLoadableInParts("some of its weights stay in float32")
    model.weight_files = WeightFiles.find(source)
    model.weight_device = target
    stored_names(model)  # raises if the files lack one
    parameters = dict(model.named_parameters(remove_duplicate=False))
    if buffers := model.state_dict().keys() - parameters.keys():
        raise NotLoadableInParts(f"it has the buffer {min(buffers)}")
    return model.eval()


def is_empty(model: nn.Module) -> bool:
    """Whether a model has parameters without values."""
    return any(parameter.is_meta for parameter in model.parameters())


def model_device(model: Any) -> torch.device:
    """Return the device of a model, or the one that the weights of an empty model belong on."""
    return torch.device(model.weight_device if is_empty(model) else model.device)


def state_values(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the names and values of the state dict; an empty model's are read one by one."""
    stored = stored_names(model) if is_empty(model) else {}
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    for name, tensor in sorted(model.state_dict(keep_vars=True).items()):
        value = tensor.detach()
        if tensor.is_meta:
            file_name = stored[name_of[id(tensor)]]
            value = model.weight_files.read(file_name, 0, len(tensor))
            value = round_weight(value, tensor.dtype, threshold_key(name_of[id(tensor)]))
        yield name, value


@contextmanager
def placeholder_weights(model: nn.Module) -> Iterator[None]:
    """Give an empty model values inside the block, so that adapters get theirs as in any model.

    All values of a parameter are one number in memory.
    """
    pairs = [
        (p, nn.Parameter(torch.zeros((), dtype=p.dtype).expand(p.shape)))
        for p in model.parameters()
        if p.is_meta
    ]
    swap: Any = torch.utils.swap_tensors
    for parameter, value in pairs:
        swap(parameter, value)
    try:
        yield
    finally:
        for parameter, value in pairs:
            swap(parameter, value.requires_grad_(parameter.requires_grad))


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Move every parameter to the meta device when a module gets it; buffers keep their values."""
    register = nn.Module.register_parameter

    def register_on_meta(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and not param.is_meta:
            param = nn.Parameter(param.to("meta"), param.requires_grad)
        register(module, name, param)

    nn.Module.register_parameter = register_on_meta  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]
