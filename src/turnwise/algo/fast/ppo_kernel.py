"""PPO's loss and gradient as one GPU kernel.

Launching forty small kernels costs a GPU more than running them. Here one pass over the batch does
all; `losses/ppo.py` has the formula, and `bench/gpu/check.py` compares the two. Triton comes with
torch's builds for CUDA.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 1024
_NUM_SUMS = 6  # loss, clip fraction, its lower part, kl, ratio, tokens


# Triton reads annotations as its own, so that the arguments have none: pointers, then numbers.
@triton.jit  # type: ignore[untyped-decorator]
def _ppo(  # type: ignore[no-untyped-def]
    log_probs,
    old_log_probs,
    advantages,
    mask,
    row_weights,
    gradient,
    sums,
    size,
    row_length,
    lowest,
    highest,
    dual,
    max_log_ratio,
    block: tl.constexpr,
    is_weighted: tl.constexpr,
):
    place = tl.program_id(0) * block + tl.arange(0, block)
    inside = place < size
    counts = tl.load(mask + place, mask=inside, other=0) != 0
    log_prob = tl.load(log_probs + place, mask=counts, other=0.0).to(tl.float32)
    old = tl.load(old_log_probs + place, mask=counts, other=0.0).to(tl.float32)
    cost = -tl.load(advantages + place, mask=counts, other=0.0).to(tl.float32)
    log_ratio = tl.minimum(tl.maximum(log_prob - old, -max_log_ratio), max_log_ratio)
    ratio = tl.exp(log_ratio)
    plain = cost * ratio
    clipped = cost * tl.minimum(tl.maximum(ratio, lowest), highest)
    cut = clipped > plain
    pessimistic = tl.maximum(plain, clipped)
    bound = tl.maximum(cost, 0.0) * dual
    cut_lower = pessimistic > bound
    slope = tl.where(cut | cut_lower, 0.0, plain)
    loss = tl.minimum(pessimistic, bound)
    if is_weighted:
        weight = tl.load(row_weights + place // row_length, mask=counts, other=0.0)
        slope *= weight
        loss *= weight
    tl.store(gradient + place, slope, mask=inside)
    out = sums + tl.program_id(0) * 6
    tl.store(out, tl.sum(loss))
    tl.store(out + 1, tl.sum(tl.where(counts & cut, 1.0, 0.0)))
    tl.store(out + 2, tl.sum(tl.where(counts & cut_lower, 1.0, 0.0)))
    tl.store(out + 3, tl.sum(tl.where(counts, -log_ratio, 0.0)))
    tl.store(out + 4, tl.sum(tl.where(counts, ratio, 0.0)))
    tl.store(out + 5, tl.sum(tl.where(counts, 1.0, 0.0)))


@triton.jit  # type: ignore[untyped-decorator]
def _totals(  # type: ignore[no-untyped-def]
    sums, num_blocks, block: tl.constexpr, is_weighted: tl.constexpr
):
    """Store the means after the sums, and the factor that is left to multiply the gradient by."""
    column = tl.arange(0, 8)
    total = tl.zeros([8], tl.float64)
    for start in range(0, num_blocks, block):
        row = start + tl.arange(0, block)
        inside = (row < num_blocks)[:, None] & (column < 6)[None, :]
        cells = sums + row[:, None] * 6 + column[None, :]
        total += tl.sum(tl.load(cells, mask=inside, other=0.0).to(tl.float64), 0)
    tokens = tl.sum(tl.where(column == 5, total, 0.0), 0)
    share = 1.0 / tl.maximum(tokens, 1.0)
    means = tl.where((column == 0) & is_weighted, total, total * share)
    means = tl.where(column == 5, tl.where(is_weighted, 1.0, share), means)
    tl.store(sums + num_blocks * 6 + column, means.to(tl.float32), mask=column < 6)


def ppo_terms(
    log_probs: torch.Tensor,
    old_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    row_weights: torch.Tensor | None,
    clip: tuple[float, float, float],
    max_log_ratio: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient [B, T] up to a factor, and [6]: loss, clip fractions, kl, ratio, that factor.

    Without `row_weights` the loss is the mean over the tokens; they are counted in the kernel.
    `clip` is (1 − ε_low, 1 + ε_high, c). Sums are added block by block, always in the same order.
    """
    if not (log_probs.is_contiguous() and old_log_probs.is_contiguous()):
        log_probs, old_log_probs = log_probs.contiguous(), old_log_probs.contiguous()
    gradient = torch.empty_like(log_probs)
    size = log_probs.numel()
    num_blocks = triton.cdiv(size, _BLOCK)
    # One allocation for the sums of every block, followed by their totals.
    sums = torch.empty((num_blocks + 1) * _NUM_SUMS, dtype=torch.float32, device=log_probs.device)
    totals = sums[num_blocks * _NUM_SUMS :]
    is_weighted = row_weights is not None
    _ppo[(num_blocks,)](
        log_probs,
        old_log_probs,
        advantages.contiguous(),
        mask.contiguous().view(torch.uint8),
        sums if row_weights is None else row_weights.float().contiguous(),
        gradient,
        sums,
        size,
        log_probs.shape[1],
        *clip,
        max_log_ratio,
        block=_BLOCK,
        is_weighted=is_weighted,
    )
    _totals[(1,)](sums, num_blocks, block=256, is_weighted=is_weighted)
    return gradient, totals
