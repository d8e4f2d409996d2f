"""Sums of the gradients of keys and values that were gathered several times, as one kernel.

With atomic additions, as in torch's `index_add_`, the order of a sum would differ from run to run,
and they need float32 copies. Imported on a GPU only. Triton interprets annotations, so the kernel's
arguments have none.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def _sum_kernel(  # type: ignore[no-untyped-def]
    keys, values, order, offsets, key_sums, value_sums, width, size: tl.constexpr
):
    """Sum the copies of one token, in float32."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, size)
    inside = at < width
    key = tl.zeros((size,), tl.float32)
    value = tl.zeros((size,), tl.float32)
    for place in range(tl.load(offsets + token), tl.load(offsets + token + 1)):
        copy = tl.load(order + place) * width
        key += tl.load(keys + copy + at, mask=inside, other=0.0).to(tl.float32)
        value += tl.load(values + copy + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(key_sums + token * width + at, key.to(key_sums.dtype.element_ty), mask=inside)
    tl.store(value_sums + token * width + at, value.to(value_sums.dtype.element_ty), mask=inside)


def sum_copies(
    keys: torch.Tensor, values: torch.Tensor, order: torch.Tensor, offsets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sum over the copies of each of N tokens: [copies, ...] -> [N, ...], twice.

    The copies of token n are order[offsets[n] : offsets[n + 1]].
    """
    shape = (len(offsets) - 1, *keys.shape[1:])
    key_sums, value_sums = keys.new_empty(shape), values.new_empty(shape)
    width = keys[0].numel()
    _sum_kernel[(shape[0],)](
        keys.contiguous(), values.contiguous(), order, offsets, key_sums, value_sums,
        width, triton.next_power_of_2(width), num_warps=1 if width <= 512 else 4,
    )  # fmt: skip
    return key_sums, value_sums


def is_exact(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether the sums are those of torch, up to rounding."""
    generator = torch.Generator().manual_seed(0)
    at = torch.tensor([0, 1, 2, 0, 1, 4, 5, 0]).to(device)
    keys, values = torch.randn(2, len(at), 3, 8, generator=generator).to(device, dtype).unbind()
    order = at.argsort(stable=True)
    offsets = torch.searchsorted(at[order], torch.arange(7, device=device))
    found = sum_copies(keys, values, order, offsets)
    wanted = (
        torch.zeros(6, 3, 8, device=device).index_add(0, at, x.float()) for x in (keys, values)
    )
    rounding = 1e-5 if dtype == torch.float32 else 2e-2
    return all(
        torch.allclose(got.float(), sums, rtol=rounding, atol=rounding)
        for got, sums in zip(found, wanted, strict=True)
    )
