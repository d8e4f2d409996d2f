"""The modules of a model that kernels compute faster on a GPU while it learns in half precision.

A module is replaced only if its forward gives the kernel's numbers for an example; its class name
is no proof.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from types import FunctionType, SimpleNamespace
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import nn

from turnwise.learner.fast import load_kernels
from turnwise.models.adapters import is_adapted
from turnwise.models.probing import PROBE_ERRORS
from turnwise.models.rounding import HALF

Forward: TypeAlias = Callable[..., torch.Tensor]
Replacement: TypeAlias = tuple[Any, Forward]
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


def faster_modules(model: Any) -> list[Replacement]:
    """Return the modules of a model that can be computed faster on its device."""
    if model.device.type != "cuda" or model.dtype not in HALF or load_kernels("kernels") is None:
        return []
    pairs = ((module, find(module)) for module in model.modules() for find in FORWARDS.values())
    return [(module, forward) for module, forward in pairs if forward is not None]


def _computes(
    module: nn.Module, x: torch.Tensor, expected: torch.Tensor, **attributes: Any
) -> bool:
    """Whether a module's forward of x is `expected`, with these attributes in place of its own.

    Its own parameters may be shards of those of a whole model.
    """
    known: Any = SimpleNamespace(**{**vars(module), **dict(module.named_children()), **attributes})
    try:
        return torch.allclose(type(module).forward(known, x), expected, rtol=1e-5, atol=1e-5)
    except PROBE_ERRORS:  # it needs something else
        return False


# -- gated MLPs: silu(x G) * (x U) D ---------------------------------------------------------------


def gated_mlp_forward(module: Any) -> Forward | None:
    """Return a forward that saves less for the backward, if a module is a gated MLP.

    Autograd would save the gate, its silu, the other half, and their product. The silu and the
    product are cheap to compute again, and are a quarter of all that a layer saves: so larger packs
    fit into memory. With adapters on D the product is saved, which their gradient needs.
    """
    for name in ("gate_proj", "up_proj", "down_proj"):
        layer = getattr(module, name, None)
        base = layer.get_base_layer() if is_adapted(layer) else layer  # type: ignore[arg-type,union-attr]
        if type(base) is not nn.Linear or base.bias is not None:
            return None

    def linear(x: torch.Tensor) -> torch.Tensor:
        return 2.0 * x

    # Two tokens, as a batch of one: a module of the user's own may mix them.
    x = torch.linspace(-1.0, 2.0, 6).view(1, 2, 3)
    expected = linear(F.silu(linear(x)) * linear(x))
    is_usual = _computes(module, x, expected, gate_proj=linear, up_proj=linear, down_proj=linear)
    return partial(_gated_mlp, module) if is_usual else None


def _gated_mlp(mlp: Any, x: torch.Tensor) -> torch.Tensor:
    gate, up = mlp.gate_proj(x), mlp.up_proj(x)
    gated = load_kernels("kernels").Gated
    down: torch.Tensor
    if type(mlp.down_proj) is nn.Linear:
        down = gated.apply(gate, up, mlp.down_proj.weight)
    else:
        down = mlp.down_proj(gated.apply(gate, up, None))
    return down


# -- RMS norms -------------------------------------------------------------------------------------


def norm_forward(module: Any) -> Forward | None:
    """Return a forward that is one kernel, if a module is an RMS norm.

    Transformers writes it as six operations in float32, each of which saves a tensor for the
    backward: on a small model a third of the time and a fifth of the memory. The kernel's backward
    reads memory once. Some norms of that name add 1 to their weights; these are left alone.
    """
    epsilon = getattr(module, "variance_epsilon", None)
    if not type(module).__name__.endswith("RMSNorm") or epsilon is None:
        return None
    x = torch.linspace(-3.0, 4.0, 16).view(1, 2, 8)
    weight = torch.linspace(0.5, 2.0, 8)
    is_usual = _computes(module, x, F.rms_norm(x, (8,), weight, epsilon), weight=weight)
    return partial(_fused_norm, module) if is_usual else None


def _fused_norm(norm: Any, hidden: torch.Tensor) -> torch.Tensor:
    kernels = load_kernels("kernels")
    weight = norm.weight
    normed: torch.Tensor
    if hidden.dtype == weight.dtype and len(weight) <= kernels.WIDEST_NORM:
        normed = kernels.RMSNorm.apply(hidden, weight, norm.variance_epsilon)
    else:
        normed = type(norm).forward(norm, hidden)
    return normed


# -- rotary position embeddings --------------------------------------------------------------------


def rotary_forward(module: Any) -> Forward | None:
    """Return a forward with a kernel in it, if a module embeds positions in the usual way.

    It is the module's own, with another function in place of `apply_rotary_pos_emb`.
    """
    forward = inspect.unwrap(type(module).forward)
    if not isinstance(forward, FunctionType) or _ROTATE not in forward.__code__.co_names:
        return None
    plain = forward.__globals__.get(_ROTATE)
    if plain is None or not _rotates_halves(plain):
        return None
    fused = FunctionType(
        forward.__code__,
        {**forward.__globals__, _ROTATE: partial(_rotate_both, plain)},
        forward.__name__,
        forward.__defaults__,
        forward.__closure__,
    )
    fused.__kwdefaults__ = forward.__kwdefaults__
    return partial(fused, module)


@cache
def _rotates_halves(plain: Callable[..., Any]) -> bool:
    """Return whether a function rotates the halves of all dimensions, as the kernel does."""
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(0))
    cos, sin = draw(2, 1, 3, 8).unbind()
    both = draw(1, 2, 3, 8), draw(1, 1, 3, 8)
    try:
        return all(
            torch.allclose(got, x * cos + torch.cat([-x[..., 4:], x[..., :4]], -1) * sin)
            for got, x in zip(plain(*both, cos, sin), both, strict=True)
        )
    except PROBE_ERRORS:  # a function of that name with other arguments
        return False


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
    rotated: tuple[torch.Tensor, torch.Tensor]
    # Some models rotate only the first dimensions of a head.
    has_all = cos.shape == sin.shape == (1, *query.shape[2:]) and query.shape[3] == key.shape[3]
    is_one_type = query.dtype == key.dtype == cos.dtype == sin.dtype
    if has_all and is_one_type and len(query) == 1 and not arguments and not named:
        rotate = load_kernels("kernels").Rotate.apply
        rotated = rotate(query, cos, sin), rotate(key, cos, sin)
    else:
        rotated = plain(query, key, cos, sin, *arguments, **named)
    return rotated


FORWARDS: dict[str, Callable[[Any], Forward | None]] = {
    "norms": norm_forward,
    "mlps": gated_mlp_forward,
    "rotary": rotary_forward,
}
"""What is looked for in a model: each returns the forward of a module that it knows."""
