"""silu(gate) * up and its gradient, each as one pass over memory.

Torch makes several passes, each of which reads and writes tensors as wide as an MLP: a tenth of an
update. Imported on a GPU only. As in torch, silu(gate) is rounded to its own precision before it is
multiplied. Triton interprets annotations, so the kernels' arguments have none.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
import triton
import triton.language as tl

_SIZE = 2048
"""Numbers that a program computes."""


@triton.jit  # type: ignore[untyped-decorator]
def _forward_kernel(gate, up, product, number, size: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * size + tl.arange(0, size)
    inside = at < number
    g = tl.load(gate + at, mask=inside).to(tl.float32)
    u = tl.load(up + at, mask=inside).to(tl.float32)
    opened = (g / (1.0 + tl.exp(-g))).to(product.dtype.element_ty).to(tl.float32)
    tl.store(product + at, (opened * u).to(product.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _backward_kernel(  # type: ignore[no-untyped-def]
    gradient, gate, up, to_gate, to_up, product, number, has_product: tl.constexpr,
    size: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * size + tl.arange(0, size)
    inside = at < number
    slope = tl.load(gradient + at, mask=inside).to(tl.float32)
    g = tl.load(gate + at, mask=inside).to(tl.float32)
    u = tl.load(up + at, mask=inside).to(tl.float32)
    sigmoid = 1.0 / (1.0 + tl.exp(-g))
    opened = (g * sigmoid).to(to_up.dtype.element_ty).to(tl.float32)
    tl.store(to_up + at, (slope * opened).to(to_up.dtype.element_ty), mask=inside)
    bent = slope * u * sigmoid * (1.0 + g * (1.0 - sigmoid))
    tl.store(to_gate + at, bent.to(to_gate.dtype.element_ty), mask=inside)
    if has_product:
        tl.store(product + at, (opened * u).to(product.dtype.element_ty), mask=inside)


def forward(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) * up of contiguous tensors."""
    product = torch.empty_like(gate)
    number = gate.numel()
    _forward_kernel[(triton.cdiv(number, _SIZE),)](gate, up, product, number, _SIZE, num_warps=8)
    return product


def backward(
    gradient: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, *, with_product: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return the gradients of gate and up, and the product again where it is needed."""
    to_gate, to_up = torch.empty_like(gate), torch.empty_like(up)
    product = torch.empty_like(gate) if with_product else None
    number = gate.numel()
    _backward_kernel[(triton.cdiv(number, _SIZE),)](
        gradient, gate, up, to_gate, to_up, to_up if product is None else product,
        number, with_product, _SIZE, num_warps=8,
    )  # fmt: skip
    return to_gate, to_up, product


def is_exact(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether the kernels compute what torch does in float32, up to rounding."""
    generator = torch.Generator().manual_seed(0)
    gate, up, slope = (
        (3 * torch.randn(_SIZE + 7, generator=generator)).to(device, dtype) for _ in range(3)
    )
    exact = [x.float().requires_grad_() for x in (gate, up)]
    with torch.enable_grad():
        expected = F.silu(exact[0]) * exact[1]
        slopes = torch.autograd.grad(expected, exact, slope.float())
    to_gate, to_up, product = backward(slope, gate, up, with_product=True)
    assert product is not None
    found = (forward(gate, up), product, to_gate, to_up)
    rounding = 1e-5 if dtype == torch.float32 else 2e-2
    return all(
        torch.allclose(got.float(), wanted, rtol=rounding, atol=rounding)
        for got, wanted in zip(found, (expected, expected, *slopes), strict=True)
    )
