"""RMS norms and their gradients, each as one pass over memory.

Torch's backward reads the input and the gradient twice, once for each of its two results. Imported
on a GPU only. Triton interprets annotations, so the kernels' arguments have none.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
import triton
import triton.language as tl

_PROGRAMS = 528
"""Programs of the backward, each of which sums its rows: four on each multiprocessor of an H200."""
WIDEST = 8192
"""Columns that a program can hold."""


@triton.jit  # type: ignore[untyped-decorator]
def _forward_kernel(  # type: ignore[no-untyped-def]
    source, weight, target, scales, epsilon, width, size: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, size)
    inside = at < width
    x = tl.load(source + row * width + at, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 0) / width + epsilon)
    tl.store(scales + row, scale)
    tl.store(target + row * width + at, (x * scale * w).to(target.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _backward_kernel(  # type: ignore[no-untyped-def]
    gradient, source, weight, scales, to_source, sums, num_rows, width, size: tl.constexpr
):
    """Compute every n-th row; the sum over them is a part of the weight's gradient."""
    at = tl.arange(0, size)
    inside = at < width
    w = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros((size,), tl.float32)
    wide = width + tl.full((), 0, tl.int64)
    for row in range(tl.program_id(0), num_rows, tl.num_programs(0)):
        begin = row * wide
        slope = tl.load(gradient + begin + at, mask=inside, other=0.0).to(tl.float32)
        x = tl.load(source + begin + at, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(scales + row)
        normed = x * scale
        total += slope * normed
        bent = slope * w
        change = scale * (bent - normed * (tl.sum(bent * normed, 0) / width))
        tl.store(to_source + begin + at, change.to(to_source.dtype.element_ty), mask=inside)
    tl.store(sums + tl.program_id(0) * width + at, total, mask=inside)


def forward(
    x: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return contiguous x [..., D], normed, and the factor of each row."""
    rows = x.view(-1, x.shape[-1])
    normed, scales = torch.empty_like(x), torch.empty(len(rows), device=x.device)
    size = triton.next_power_of_2(x.shape[-1])
    _forward_kernel[(len(rows),)](
        rows, weight, normed, scales, epsilon, x.shape[-1], size, num_warps=_warps(size)
    )
    return normed, scales


def backward(
    gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of contiguous x and of the weight."""
    width, num_rows = x.shape[-1], len(scales)
    num_programs = min(_PROGRAMS, triton.cdiv(num_rows, 4))
    to_x, sums = torch.empty_like(x), torch.empty(num_programs, width, device=x.device)
    size = triton.next_power_of_2(width)
    _backward_kernel[(num_programs,)](
        gradient, x, weight, scales, to_x, sums, num_rows, width, size, num_warps=_warps(size)
    )
    return to_x, sums.sum(0).to(weight.dtype)


def _warps(size: int) -> int:
    return min(max(size // 256, 1), 16)


def is_exact(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether the kernels compute what torch does in float32, up to rounding."""
    generator = torch.Generator().manual_seed(0)
    x, slope = torch.randn(2, 11, 72, generator=generator).to(device, dtype)
    weight = torch.randn(72, generator=generator).to(device, dtype)
    exact = [given.float().requires_grad_() for given in (x, weight)]
    with torch.enable_grad():
        expected = F.rms_norm(exact[0], (72,), exact[1], 1e-5)
        wanted = torch.autograd.grad(expected, exact, slope.float())
    normed, scales = forward(x, weight, 1e-5)
    found = (normed, *backward(slope, x, weight, scales))
    rounding = 1e-4 if dtype == torch.float32 else 2e-2
    return all(
        torch.allclose(got.float(), value, rtol=rounding, atol=rounding)
        for got, value in zip(found, (expected, *wanted), strict=True)
    )
