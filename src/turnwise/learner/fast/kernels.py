"""Triton kernels for a GPU, each one pass over memory where torch makes several.

Logits, MLPs, norms and embeddings stay in their own precision, sums are in float32. Imported on a
GPU only, by `load_kernels`. Triton interprets annotations, so the kernels' arguments have none.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

# -- gated MLPs: silu(gate) * up -------------------------------------------------------------------

# As in torch, silu(gate) is rounded to its own precision before it is multiplied.
_MLP_SIZE = 2048
"""Numbers that a program computes."""


@triton.jit  # type: ignore[untyped-decorator]
def _silu_kernel(gate, up, product, number, size: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * size + tl.arange(0, size)
    inside = at < number
    g = tl.load(gate + at, mask=inside).to(tl.float32)
    u = tl.load(up + at, mask=inside).to(tl.float32)
    opened = (g / (1.0 + tl.exp(-g))).to(product.dtype.element_ty).to(tl.float32)
    tl.store(product + at, (opened * u).to(product.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _silu_backward_kernel(  # type: ignore[no-untyped-def]
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


class Gated(torch.autograd.Function):
    """silu(gate) * up, multiplied by a weight if there is one.

    The silu and the product, which autograd would save, are computed again in the backward.
    """

    @staticmethod
    def forward(
        ctx: Any, gate: torch.Tensor, up: torch.Tensor, weight: torch.Tensor | None
    ) -> torch.Tensor:
        gate, up = gate.contiguous(), up.contiguous()
        ctx.save_for_backward(gate, up, weight)
        product, number = torch.empty_like(gate), gate.numel()
        programs = (triton.cdiv(number, _MLP_SIZE),)
        _silu_kernel[programs](gate, up, product, number, _MLP_SIZE, num_warps=8)
        return product if weight is None else F.linear(product, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gate, up, weight = ctx.saved_tensors
        to_product = gradient.contiguous() if weight is None else gradient @ weight
        to_gate, to_up = torch.empty_like(gate), torch.empty_like(up)
        wants_weight = ctx.needs_input_grad[2]
        product = torch.empty_like(gate) if wants_weight else to_up
        number = gate.numel()
        _silu_backward_kernel[(triton.cdiv(number, _MLP_SIZE),)](
            to_product, gate, up, to_gate, to_up, product, number, wants_weight, _MLP_SIZE,
            num_warps=8,
        )  # fmt: skip
        to_weight = gradient.flatten(0, -2).T @ product.flatten(0, -2) if wants_weight else None
        return to_gate, to_up, to_weight


# -- RMS norms -------------------------------------------------------------------------------------

_NORM_PROGRAMS = 528
"""Programs of the backward, each of which sums its rows: four on each multiprocessor of an H200."""
WIDEST_NORM = 8192
"""Columns that a program can hold."""


@triton.jit  # type: ignore[untyped-decorator]
def _norm_kernel(  # type: ignore[no-untyped-def]
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
def _norm_backward_kernel(  # type: ignore[no-untyped-def]
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


class RMSNorm(torch.autograd.Function):
    """x [..., D], normed and multiplied by a weight [D]."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        x, width = x.contiguous(), x.shape[-1]
        num_rows, size = x.numel() // width, triton.next_power_of_2(width)
        normed, scales = torch.empty_like(x), torch.empty(num_rows, device=x.device)
        _norm_kernel[(num_rows,)](
            x, weight, normed, scales, epsilon, width, size, num_warps=_warps(size)
        )
        ctx.save_for_backward(x, weight, scales)
        return normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, scales = ctx.saved_tensors
        width, num_rows = x.shape[-1], len(scales)
        num_programs = min(_NORM_PROGRAMS, triton.cdiv(num_rows, 4))
        size = triton.next_power_of_2(width)
        to_x, sums = torch.empty_like(x), torch.empty(num_programs, width, device=x.device)
        _norm_backward_kernel[(num_programs,)](
            gradient.contiguous(), x, weight, scales, to_x, sums, num_rows, width, size,
            num_warps=_warps(size),
        )  # fmt: skip
        return to_x, sums.sum(0).to(weight.dtype), None


def _warps(size: int) -> int:
    return min(max(size // 256, 1), 16)


# -- rotary position embeddings --------------------------------------------------------------------


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


class Rotate(torch.autograd.Function):
    """x [1, H, N, D], rotated by cos, sin [1, N, D]."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotated(x, cos, sin, is_backward=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return _rotated(gradient, cos, sin, is_backward=True), None, None


def _rotated(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, is_backward: bool
) -> torch.Tensor:
    x = x if x.stride(-1) == 1 else x.contiguous()
    _, num_heads, num_tokens, size = x.shape
    rotated = x.new_empty(1, num_tokens, num_heads, size)
    _rotate_kernel[(num_tokens,)](
        x, cos.contiguous(), sin.contiguous(), rotated, x.stride(1), x.stride(2), num_heads,
        size // 2, is_backward, triton.next_power_of_2(num_heads),
        triton.next_power_of_2(size // 2), num_warps=4,
    )  # fmt: skip
    return rotated.transpose(1, 2)


# -- log-probs of chosen tokens --------------------------------------------------------------------

_LOGIT_SIZE = 4096
"""Logits of a row that a program holds at a time."""


@triton.jit  # type: ignore[untyped-decorator]
def _log_prob_kernel(  # type: ignore[no-untyped-def]
    logits, targets, chosen, totals, entropy, row_stride, vocab_size, factor, size: tl.constexpr
):
    """Compute one row: its log-sum-exp, the log-prob of its target, and its entropy."""
    row = tl.program_id(0)
    source = logits + row.to(tl.int64) * row_stride
    lanes = tl.arange(0, size)
    largest = -float("inf")
    total = 0.0
    weighted = 0.0
    for start in range(0, vocab_size, size):
        at = start + lanes
        x = tl.load(source + at, mask=at < vocab_size, other=-float("inf")).to(tl.float32) * factor
        higher = tl.maximum(largest, tl.max(x, 0))
        # As long as all are -inf, nothing is subtracted: -inf - -inf is NaN.
        base = tl.where(higher == -float("inf"), 0.0, higher)
        fade = tl.exp(largest - base)
        p = tl.exp(x - base)
        total = total * fade + tl.sum(p, 0)
        weighted = weighted * fade + tl.sum(tl.where(p > 0.0, p * x, 0.0), 0)
        largest = higher
    log_total = largest + tl.log(total)
    target = tl.load(source + tl.load(targets + row)).to(tl.float32) * factor
    tl.store(totals + row, log_total)
    tl.store(chosen + row, target - log_total)
    tl.store(entropy + row, log_total - weighted / total)


@triton.jit  # type: ignore[untyped-decorator]
def _log_prob_backward_kernel(  # type: ignore[no-untyped-def]
    logits, targets, totals, entropy, grad_chosen, grad_entropy,
    row_stride, vocab_size, factor, has_entropy: tl.constexpr, size: tl.constexpr,
):  # fmt: skip
    """Replace some logits of one row by the gradient of the loss with respect to them."""
    row = tl.program_id(0)
    source = logits + row.to(tl.int64) * row_stride
    at = tl.program_id(1) * size + tl.arange(0, size)
    x = tl.load(source + at, mask=at < vocab_size, other=-float("inf")).to(tl.float32) * factor
    log_p = x - tl.load(totals + row)
    p = tl.exp(log_p)
    to_chosen = tl.load(grad_chosen + row)
    slope = -p * to_chosen
    if has_entropy:
        # dH/dz = -p (log p + H)
        bent = tl.where(p > 0.0, p * (log_p + tl.load(entropy + row)), 0.0)
        slope -= tl.load(grad_entropy + row) * bent
    slope += tl.where(at == tl.load(targets + row), to_chosen, 0.0)
    tl.store(source + at, (slope * factor).to(logits.dtype.element_ty), mask=at < vocab_size)


def log_probs(
    logits: torch.Tensor, targets: torch.Tensor, factor: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return log-probs of the targets, log-sum-exps and entropies of factor · logits: [n] each."""
    chosen, totals, entropy = torch.empty(3, len(logits), device=logits.device).unbind()
    _log_prob_kernel[(len(logits),)](
        logits, targets, chosen, totals, entropy,
        logits.stride(0), logits.shape[1], factor, _LOGIT_SIZE, num_warps=8,
    )  # fmt: skip
    return chosen, totals, entropy


def log_probs_backward_(
    logits: torch.Tensor,
    targets: torch.Tensor,
    totals: torch.Tensor,
    entropy: torch.Tensor,
    grad_chosen: torch.Tensor,
    grad_entropy: torch.Tensor | None,
    factor: float,
) -> None:
    """Replace logits [n, V] by the gradient with respect to them, given those of the outputs."""
    _log_prob_backward_kernel[(len(logits), triton.cdiv(logits.shape[1], _LOGIT_SIZE))](
        logits, targets, totals, entropy,
        grad_chosen.contiguous(), totals if grad_entropy is None else grad_entropy.contiguous(),
        logits.stride(0), logits.shape[1], factor, grad_entropy is not None, _LOGIT_SIZE,
        num_warps=8,
    )  # fmt: skip


# -- sums of the gradients of keys and values that were gathered several times ---------------------


# With atomic additions, as in `index_add_`, the order of a sum would differ from run to run.
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
    for number in range(tl.load(offsets + token), tl.load(offsets + token + 1)):
        copy = tl.load(order + number) * width
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
