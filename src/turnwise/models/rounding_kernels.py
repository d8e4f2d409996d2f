"""Rounding by thresholds on a GPU, bit by bit as `models.rounding` does, in one pass over memory.

Triton interprets annotations, so the kernels' arguments have none.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_SIZE = 4096
"""Numbers that a program rounds."""


@triton.jit  # type: ignore[untyped-decorator]
def rounded(w, index, key, weight_type: tl.constexpr):  # type: ignore[no-untyped-def]
    x = index.to(tl.uint32) ^ key.to(tl.uint32)
    x ^= x >> 16
    x *= 0x85EBCA6B
    x ^= x >> 13
    x *= 0xC2B2AE35
    x ^= x >> 16
    if weight_type == tl.float16:
        size = tl.abs(w)
        offset = tl.where(size < 0.00006103515625, 0.00006103515625, 0.0)  # 2 ** -14
        bits = (size + offset).to(tl.uint32, bitcast=True) + (x >> 19)
        whole = (bits & 0xFFFFE000).to(tl.float32, bitcast=True) - offset
        result = tl.where(w < 0, -whole, whole).to(tl.float16)
    elif weight_type == tl.bfloat16:
        bits = w.to(tl.uint32, bitcast=True) + (x >> 16)
        result = (bits >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        result = w
    return result


@triton.jit(do_not_specialize=["first", "key"])  # type: ignore[untyped-decorator]
def _round_kernel(  # type: ignore[no-untyped-def]
    values, target, first, key, number, size: tl.constexpr
):
    at = tl.program_id(0).to(tl.int64) * size + tl.arange(0, size)
    w = tl.load(values + at, mask=at < number, other=0.0)
    result = rounded(w, first + at, key, target.dtype.element_ty)
    tl.store(target + at, result, mask=at < number)


@triton.jit(do_not_specialize=["first", "key"])  # type: ignore[untyped-decorator]
def _merge_kernel(  # type: ignore[no-untyped-def]
    weight, low, high, target, scale, first, key, rows, columns,
    rank: tl.constexpr, padded_rank: tl.constexpr, height: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1) * height + tl.arange(0, height)[:, None]
    column = tl.program_id(0) * width + tl.arange(0, width)[None, :]
    k = tl.arange(0, padded_rank)
    b_mask = (row < rows) & (k[None, :] < rank)
    b = tl.load(high + row * rank + k[None, :], mask=b_mask, other=0.0)
    a_mask = (k[:, None] < rank) & (column < columns)
    a = tl.load(low + k[:, None] * columns + column, mask=a_mask, other=0.0)
    inside = (row < rows) & (column < columns)
    at = row.to(tl.int64) * columns + column
    # Numbers in half precision are exact in TF32, in which float32 is multiplied.
    delta = tl.dot(b.to(tl.float32), a.to(tl.float32))
    merged = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32) + scale * delta
    result = rounded(merged, first + at, key, target.dtype.element_ty)
    tl.store(target + at, result, mask=inside)


def round_on_gpu(values: torch.Tensor, target: torch.Tensor, key: int, first: int) -> None:
    """Round float32 values into a target of half precision; both are contiguous."""
    number = values.numel()
    if number:
        programs = (triton.cdiv(number, _SIZE),)
        _round_kernel[programs](values, target, first, key, number, _SIZE)


def merge_on_gpu(
    weight: torch.Tensor,
    low: torch.Tensor,
    high: torch.Tensor,
    target: torch.Tensor,
    scale: float,
    key: int,
    first: int,
) -> None:
    """Round W + scale · B A into a target; all are contiguous, in one half precision."""
    (rows, columns), rank = weight.shape, len(low)
    if weight.numel():
        programs = (triton.cdiv(columns, 128), triton.cdiv(rows, 32))
        padded_rank = max(16, triton.next_power_of_2(rank))  # the least that a product takes
        _merge_kernel[programs](
            weight, low, high, target, scale, first, key, rows, columns, rank, padded_rank, 32, 128
        )
