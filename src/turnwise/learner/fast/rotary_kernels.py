"""Rotary position embeddings, and their gradient, as one pass over memory.

Transformers writes them as six operations, some of which copy. Imported on a GPU only. Triton
interprets annotations, so the kernel's arguments have none.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def _rotate_kernel(  # type: ignore[no-untyped-def]
    source, cos, sin, target, head_stride, token_stride, num_heads, half,
    is_backward: tl.constexpr, num_lanes: tl.constexpr, num_columns: tl.constexpr,
):  # fmt: skip
    """Rotate all heads of one token."""
    token = tl.program_id(0).to(tl.int64)
    heads = tl.arange(0, num_lanes)[:, None]
    columns = tl.arange(0, num_columns)[None, :]
    inside = (heads < num_heads) & (columns < half)
    angles = token * 2 * half + columns
    cos_1 = tl.load(cos + angles, mask=columns < half).to(tl.float32)
    cos_2 = tl.load(cos + angles + half, mask=columns < half).to(tl.float32)
    sin_1 = tl.load(sin + angles, mask=columns < half).to(tl.float32)
    sin_2 = tl.load(sin + angles + half, mask=columns < half).to(tl.float32)
    at = source + token * token_stride + heads * head_stride + columns
    x_1 = tl.load(at, mask=inside).to(tl.float32)
    x_2 = tl.load(at + half, mask=inside).to(tl.float32)
    if is_backward:
        y_1 = x_1 * cos_1 + x_2 * sin_2
        y_2 = x_2 * cos_2 - x_1 * sin_1
    else:
        y_1 = x_1 * cos_1 - x_2 * sin_1
        y_2 = x_2 * cos_2 + x_1 * sin_2
    to = target + (token * num_heads + heads) * 2 * half + columns
    tl.store(to, y_1.to(target.dtype.element_ty), mask=inside)
    tl.store(to + half, y_2.to(target.dtype.element_ty), mask=inside)


def rotate(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, is_backward: bool = False
) -> torch.Tensor:
    """Rotate x [1, H, N, D] by cos, sin [1, N, D]; with `is_backward`, return the gradient."""
    x = x if x.stride(-1) == 1 else x.contiguous()
    _, num_heads, num_tokens, size = x.shape
    found = x.new_empty(1, num_tokens, num_heads, size)
    _rotate_kernel[(num_tokens,)](
        x, cos.contiguous(), sin.contiguous(), found, x.stride(1), x.stride(2), num_heads,
        size // 2, is_backward, triton.next_power_of_2(num_heads),
        triton.next_power_of_2(size // 2), num_warps=4,
    )  # fmt: skip
    return found.transpose(1, 2)


def is_exact(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether the kernel computes what torch does in float32, up to rounding."""
    generator = torch.Generator().manual_seed(0)
    x, slope = torch.randn(2, 1, 5, 3, 24, generator=generator).to(device, dtype).transpose(2, 3)
    cos, sin = torch.randn(2, 1, 5, 24, generator=generator).to(device, dtype)
    exact = x.float().requires_grad_()
    with torch.enable_grad():
        turned = torch.cat([-exact[..., 12:], exact[..., :12]], -1)
        expected = exact * cos[:, None].float() + turned * sin[:, None].float()
        (to_x,) = torch.autograd.grad(expected, exact, slope.float())
    rounding = 1e-5 if dtype == torch.float32 else 2e-2
    return all(
        torch.allclose(got.float(), wanted, rtol=rounding, atol=rounding)
        for got, wanted in (
            (rotate(x, cos, sin), expected),
            (rotate(slope, cos, sin, is_backward=True), to_x),
        )
    )
