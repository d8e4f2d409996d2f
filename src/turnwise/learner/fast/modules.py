"""The modules of a model that kernels compute faster on a GPU while it learns.

A module is replaced only if a probe computes the same numbers; its class name is no proof. On a CPU
and where a kernel cannot be used, the model's own modules compute.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FunctionType
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import nn
from torch.distributed.fsdp import FSDPModule

from turnwise.learner.fast import load_kernels
from turnwise.models.adapters import is_adapted
from turnwise.models.rounding import HALF

Replacement: TypeAlias = tuple[Any, Callable[[torch.Tensor], torch.Tensor]]
"""A module, and the forward that replaces its own."""
_ROTATE = "apply_rotary_pos_emb"
"""The function of their file by which transformers' modules embed positions."""


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
    if model.device.type != "cuda":
        return []
    in_layers = {module for layer in layers for module in layer.modules()}
    rest = [module for module in model.modules() if module not in in_layers]
    replacements: list[Replacement] = []
    layer: Any
    for layer in (None, *layers):
        modules = rest if layer is None else list(layer.modules())
        if isinstance(layer, FSDPModule):
            layer.unshard()
        try:
            replacements += gated_mlps(modules)
            replacements += fused_norms(modules)
            replacements += fused_rotary(modules)
        finally:
            if isinstance(layer, FSDPModule):
                layer.reshard()
    return replacements


def _kernels_for(x: torch.Tensor) -> Any:
    """Return the module of kernels, or None where torch computes."""
    if not x.is_cuda or x.dtype not in HALF:
        return None
    return load_kernels("kernels", x.dtype, x.device)


# -- gated MLPs: silu(x G) * (x U) D ---------------------------------------------------------------


@torch.no_grad()
def gated_mlps(modules: Iterable[nn.Module]) -> list[Replacement]:
    """Return the gated MLPs among modules, with forwards that save less for the backward.

    Autograd would save the gate, its silu, the other half, and their product. The silu and the
    product are cheap to compute again, and are a quarter of all that a layer saves: so larger packs
    fit into memory. With adapters on D the product is saved, which their gradient needs.
    """
    return [(module, partial(_gated_mlp, module)) for module in modules if _is_gated_mlp(module)]


def _gated_mlp(mlp: Any, x: torch.Tensor) -> torch.Tensor:
    gate, up, kernels = mlp.gate_proj(x), mlp.up_proj(x), _kernels_for(x)
    down: torch.Tensor
    if type(mlp.down_proj) is nn.Linear:
        down = kernels.Gated.apply(gate, up, mlp.down_proj.weight)
    else:
        down = mlp.down_proj(kernels.Gated.apply(gate, up, None))
    return down


def _is_gated_mlp(module: Any) -> bool:
    linear: list[Any] = [
        getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")
    ]
    bases = [layer.get_base_layer() if is_adapted(layer) else layer for layer in linear]
    if not all(type(base) is nn.Linear and base.bias is None for base in bases):
        return False
    if type(getattr(module, "act_fn", None)).__name__ not in ("SiLU", "SiLUActivation"):
        return False
    weight = bases[0].weight
    if _kernels_for(weight) is None:
        return False
    # Two tokens, as a batch of one: a module of the user's own may mix them.
    x = torch.linspace(-1.0, 2.0, 2 * weight.shape[1]).to(weight).view(1, 2, -1)
    gate, up, down = linear
    return bool(torch.equal(module(x), down(F.silu(gate(x)) * up(x))))


# -- RMS norms -------------------------------------------------------------------------------------


@torch.no_grad()
def fused_norms(modules: Iterable[nn.Module]) -> list[Replacement]:
    """Return the RMS norms among some modules that one kernel can compute.

    Transformers writes them as six operations in float32, each of which saves a tensor for the
    backward: on a small model a third of the time and a fifth of the memory. In half precision our
    own kernel is used, whose backward reads memory once. Some norms of that name add 1 to their
    weights; these are left alone.
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
    kernels = _kernels_for(hidden)
    if kernels is None or hidden.dtype != weight.dtype or len(weight) > kernels.WIDEST_NORM:
        return F.rms_norm(hidden, weight.shape, weight, epsilon)
    normed: torch.Tensor = kernels.RMSNorm.apply(hidden, weight, epsilon)
    return normed


def _is_rms_norm(norm: Any) -> bool:
    probe = torch.linspace(-3.0, 4.0, norm.weight.shape[0]).to(norm.weight)[None]
    expected, got = norm(probe).float(), _fused_norm(norm, probe).float()
    tolerance = 1e-5 if norm.weight.dtype in (torch.float32, torch.float64) else 2e-2
    return bool((got - expected).abs().max() <= tolerance * (1.0 + expected.abs().max()))


# -- rotary position embeddings --------------------------------------------------------------------


@torch.no_grad()
def fused_rotary(modules: Iterable[nn.Module]) -> list[Replacement]:
    """Return the modules that embed positions in the usual way, with forwards that use a kernel.

    The forward of such a module is made again with another function in place of
    `apply_rotary_pos_emb`; everything else in it stays as it is.
    """
    replacements: list[Replacement] = []
    for module in modules:
        forward = inspect.unwrap(type(module).forward)
        if not isinstance(forward, FunctionType) or _ROTATE not in forward.__code__.co_names:
            continue
        plain, size = forward.__globals__.get(_ROTATE), getattr(module, "head_dim", None)
        weight = next(module.parameters(), None)
        if not (callable(plain) and size and weight is not None):
            continue
        if not _rotates_halves(plain, size, weight):
            continue
        made = FunctionType(
            forward.__code__,
            {**forward.__globals__, _ROTATE: partial(_rotate_both, plain)},
            forward.__name__,
            forward.__defaults__,
            forward.__closure__,
        )
        made.__kwdefaults__ = forward.__kwdefaults__
        replacements.append((module, partial(made, module)))
    return replacements


def _rotates_halves(plain: Callable[..., Any], size: int, weight: torch.Tensor) -> bool:
    """Return whether a function rotates the halves of all dimensions, as the kernel does."""
    if size % 2 or _kernels_for(weight) is None:
        return False
    generator = torch.Generator().manual_seed(0)
    draw = partial(torch.randn, generator=generator)
    query, key = (draw(1, heads, 3, size).to(weight) for heads in (2, 1))
    cos, sin = (draw(1, 3, size).to(weight) for _ in range(2))
    try:
        expected = plain(query, key, cos, sin)
    except Exception:  # a function of that name with other arguments
        return False
    got = _rotate_both(plain, query, key, cos, sin)
    return all(
        ours.shape == theirs.shape and torch.allclose(ours, theirs, rtol=3e-2, atol=3e-2)
        for ours, theirs in zip(got, expected, strict=True)
    )


def _rotate_both(
    plain: Callable[..., Any],
    query: torch.Tensor,
    key: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *arguments: Any,
    **named: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """[1, H, N, D], [1, K, N, D] and two of [1, N, D]; anything else is left to `plain`."""
    kernels = _kernels_for(query)
    of_one_kind = {query.dtype, key.dtype, cos.dtype, sin.dtype} == {query.dtype}
    # Some models rotate only the first dimensions of a head.
    has_all = cos.shape == sin.shape == (1, *query.shape[2:]) and query.shape[3] == key.shape[3]
    if kernels is None or arguments or named or len(query) != 1 or not (of_one_kind and has_all):
        rotated: tuple[torch.Tensor, torch.Tensor]
        rotated = plain(query, key, cos, sin, *arguments, **named)
        return rotated
    return kernels.Rotate.apply(query, cos, sin), kernels.Rotate.apply(key, cos, sin)
