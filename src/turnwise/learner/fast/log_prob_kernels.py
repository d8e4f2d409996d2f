"""Log-probs of chosen tokens and their gradient as Triton kernels, one pass over the logits each.

In torch they are six passes over a float32 copy of the logits. Imported on a GPU only. Logits stay
in their own precision, sums are in float32. Triton interprets annotations, so the kernels'
arguments have none.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_SIZE = 4096
"""Logits of a row that a program holds at a time."""


@triton.jit  # type: ignore[untyped-decorator]
def _forward_kernel(  # type: ignore[no-untyped-def]
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
def _backward_kernel(  # type: ignore[no-untyped-def]
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


def forward(
    logits: torch.Tensor, targets: torch.Tensor, factor: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return log-probs of the targets, log-sum-exps and entropies of factor · logits: [n] each."""
    chosen, totals, entropy = torch.empty(3, len(logits), device=logits.device).unbind()
    _forward_kernel[(len(logits),)](
        logits, targets, chosen, totals, entropy,
        logits.stride(0), logits.shape[1], factor, _SIZE, num_warps=8,
    )  # fmt: skip
    return chosen, totals, entropy


def backward_(
    logits: torch.Tensor,
    targets: torch.Tensor,
    totals: torch.Tensor,
    entropy: torch.Tensor,
    grad_chosen: torch.Tensor,
    grad_entropy: torch.Tensor | None,
    factor: float,
) -> None:
    """Replace logits [n, V] by the gradient with respect to them, given those of the outputs."""
    _backward_kernel[(len(logits), triton.cdiv(logits.shape[1], _SIZE))](
        logits, targets, totals, entropy,
        grad_chosen.contiguous(), totals if grad_entropy is None else grad_entropy.contiguous(),
        logits.stride(0), logits.shape[1], factor, grad_entropy is not None, _SIZE, num_warps=8,
    )  # fmt: skip


def is_exact(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether the kernels compute what torch does, on two blocks and a bit of logits."""
    generator = torch.Generator().manual_seed(0)
    shape = (5, 2 * _SIZE + 7)
    logits = (4 * torch.randn(shape, generator=generator)).to(device, dtype)
    targets = torch.randint(0, shape[1], shape[:1], generator=generator).to(device)
    to_chosen, to_entropy = torch.randn(2, shape[0], generator=generator).to(device).unbind()
    plain = logits.float().requires_grad_()
    with torch.enable_grad():
        log_p = (plain * 0.7).log_softmax(1)
        chosen = log_p.gather(1, targets[:, None]).squeeze(1)
        entropy = -(log_p.exp() * log_p).sum(1)
        (chosen * to_chosen + entropy * to_entropy).sum().backward()  # type: ignore[no-untyped-call]
    got_chosen, totals, got_entropy = forward(logits, targets, 0.7)
    backward_(logits, targets, totals, got_entropy, to_chosen, to_entropy, 0.7)
    assert plain.grad is not None
    rounding = 1e-5 if dtype == torch.float32 else 1e-2
    return (
        torch.allclose(got_chosen, chosen.detach(), rtol=1e-4, atol=1e-4)
        and torch.allclose(got_entropy, entropy.detach(), rtol=1e-4, atol=1e-4)
        and torch.allclose(logits.float(), plain.grad, rtol=rounding, atol=1e-6)
    )
