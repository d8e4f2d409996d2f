"""A step of AdamW for weights in half precision, as one pass over memory.

Torch scales the gradient, steps in float32 and rounds to the module in passes of their own, and
needs the gradient in float32. Imported on a GPU only. Triton interprets annotations, so the
kernel's arguments have none.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

_SIZE = 2048
"""Weights that a program computes."""


@triton.jit  # type: ignore[untyped-decorator]
def _step_kernel(  # type: ignore[no-untyped-def]
    weight, master, gradient, mean, mean_square,
    scale, decay, rate, root, beta1, beta2, epsilon, number, size: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * size + tl.arange(0, size)
    inside = at < number
    g = tl.load(gradient + at, mask=inside).to(tl.float32) * scale
    w = tl.load(master + at, mask=inside)
    m = tl.load(mean + at, mask=inside)
    v = tl.load(mean_square + at, mask=inside)
    m += (1.0 - beta1) * (g - m)
    v = beta2 * v + (1.0 - beta2) * g * g
    w = w * decay - rate * m / (tl.sqrt(v) / root + epsilon)
    tl.store(mean + at, m, mask=inside)
    tl.store(mean_square + at, v, mask=inside)
    tl.store(master + at, w, mask=inside)
    tl.store(weight + at, w.to(weight.dtype.element_ty), mask=inside)


def step_(
    weight: torch.Tensor,
    master: torch.Tensor,
    gradient: torch.Tensor,
    mean: torch.Tensor,
    mean_square: torch.Tensor,
    *,
    scale: float,
    number: int,
    learning_rate: float,
    weight_decay: float,
    betas: tuple[float, float],
    epsilon: float,
) -> None:
    """Make step `number`, from 1, on a float32 master and its moments; round it to the weight.

    The tensors are contiguous; the gradient, of any precision, is multiplied by `scale`.
    """
    _step_kernel[(triton.cdiv(master.numel(), _SIZE),)](
        weight, master, gradient, mean, mean_square,
        scale, 1.0 - learning_rate * weight_decay, learning_rate / (1.0 - betas[0] ** number),
        math.sqrt(1.0 - betas[1] ** number), *betas, epsilon, master.numel(), _SIZE, num_warps=8,
    )  # fmt: skip


def is_exact(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether three steps are those of torch, up to rounding."""
    generator = torch.Generator().manual_seed(0)
    plain = torch.nn.Parameter(torch.randn(_SIZE + 7, generator=generator).to(device))
    master = plain.detach().clone()
    weight, moments = master.to(dtype), torch.zeros(2, len(master), device=device)
    adam = torch.optim.AdamW([plain], lr=1e-2, weight_decay=0.1, betas=(0.9, 0.95))
    for number in (1, 2, 3):
        gradient = torch.randn(len(master), generator=generator).to(device, dtype)
        plain.grad = gradient.float() * 0.5
        adam.step()
        step_(
            *(weight, master, gradient, *moments),
            scale=0.5,
            number=number,
            learning_rate=1e-2,
            weight_decay=0.1,
            betas=(0.9, 0.95),
            epsilon=1e-8,
        )
    rounding = 1e-5 if dtype == torch.float32 else 1e-2
    return torch.allclose(master, plain.detach(), rtol=1e-5, atol=1e-6) and torch.allclose(
        weight.float(), master, rtol=rounding
    )
