"""Attention modules whose rotary position embedding is one kernel.

Transformers' modules call a function of their file, `apply_rotary_pos_emb`. The forward of such a
module is made again with another function of that name; everything else in it stays as it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from turnwise.learner.fast.kernels import load_kernels
from turnwise.learner.fast.replaced import Replacement

_NAME = "apply_rotary_pos_emb"


@torch.no_grad()
def fused_rotary(modules: Iterable[nn.Module]) -> list[Replacement]:
    """Return the modules that embed positions in the usual way, with forwards that use a kernel."""
    found: list[Replacement] = []
    for module in modules:
        forward = inspect.unwrap(type(module).forward)
        if not isinstance(forward, FunctionType) or _NAME not in forward.__code__.co_names:
            continue
        plain, size = forward.__globals__.get(_NAME), getattr(module, "head_dim", None)
        weight = next(module.parameters(), None)
        if callable(plain) and size and weight is not None and _is_usual(plain, size, weight):
            found.append((module, partial(with_function(forward, plain), module)))
    return found


def with_function(forward: FunctionType, plain: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    """Return the same function, which rotates with the kernel."""
    functions = {**forward.__globals__, _NAME: partial(_rotate_both, plain)}
    made = FunctionType(
        forward.__code__, functions, forward.__name__, forward.__defaults__, forward.__closure__
    )
    made.__kwdefaults__ = forward.__kwdefaults__
    return made


def _is_usual(plain: Callable[..., Any], size: int, weight: torch.Tensor) -> bool:
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


def _kernels_for(query: torch.Tensor) -> Any:
    """Return the module of the kernel, or None where torch computes."""
    if not query.is_cuda or query.dtype not in (torch.bfloat16, torch.float16):
        return None
    return load_kernels("rotary_kernels", query.dtype, query.device)


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
        found: tuple[torch.Tensor, torch.Tensor] = plain(query, key, cos, sin, *arguments, **named)
        return found
    return _Rotate.apply(query, cos, sin, kernels), _Rotate.apply(key, cos, sin, kernels)  # type: ignore[no-untyped-call]


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, kernels: Any
    ) -> torch.Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.kernels = kernels
        rotated: torch.Tensor = kernels.rotate(x, cos, sin)
        return rotated

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return ctx.kernels.rotate(gradient, cos, sin, is_backward=True), None, None, None
