"""PPO's loss and gradient as one GPU kernel.

Forty small steps cost a GPU more to start than to run. Here one pass over the batch does them all;
`ppo.py` says what they are, and `bench/gpu/check.py` holds the two against each other. Triton comes
with torch's builds for CUDA.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 1024
_NUM_SUMS = 5  # loss, clip fraction, its lower part, kl, ratio


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
):
    place = tl.program_id(0) * block + tl.arange(0, block)
    inside = place < size
    counts = tl.load(mask + place, mask=inside, other=0) != 0
    log_prob = tl.load(log_probs + place, mask=counts, other=0.0).to(tl.float32)
    old = tl.load(old_log_probs + place, mask=counts, other=0.0).to(tl.float32)
    cost = -tl.load(advantages + place, mask=counts, other=0.0).to(tl.float32)
    weight = tl.load(row_weights + place // row_length, mask=counts, other=0.0)
    log_ratio = tl.minimum(tl.maximum(log_prob - old, -max_log_ratio), max_log_ratio)
    ratio = tl.exp(log_ratio)
    plain = cost * ratio
    clipped = cost * tl.minimum(tl.maximum(ratio, lowest), highest)
    cut = clipped > plain
    pessimistic = tl.maximum(plain, clipped)
    bound = tl.maximum(cost, 0.0) * dual
    cut_lower = pessimistic > bound
    slope = tl.where(cut | cut_lower, 0.0, plain)
    tl.store(gradient + place, slope * weight, mask=inside)
    out = sums + tl.program_id(0) * 5
    tl.store(out, tl.sum(tl.minimum(pessimistic, bound) * weight))
    tl.store(out + 1, tl.sum(tl.where(counts & cut, 1.0, 0.0)))
    tl.store(out + 2, tl.sum(tl.where(counts & cut_lower, 1.0, 0.0)))
    tl.store(out + 3, tl.sum(tl.where(counts, -log_ratio, 0.0)))
    tl.store(out + 4, tl.sum(tl.where(counts, ratio, 0.0)))


def ppo_sums(
    log_probs: torch.Tensor,
    old_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    row_weights: torch.Tensor,
    clip: tuple[float, float, float],
    max_log_ratio: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient [B, T], and the sums [5] of loss, clip fractions, kl and ratio.

    `clip` is (1 − ε_low, 1 + ε_high, c). Sums are added block by block, always in the same order.
    """
    log_probs, old_log_probs, advantages = (
        x.detach().contiguous() for x in (log_probs, old_log_probs, advantages)
    )
    gradient = torch.empty_like(log_probs)
    num_blocks = triton.cdiv(log_probs.numel(), _BLOCK)
    sums = torch.empty(num_blocks, _NUM_SUMS, device=log_probs.device)
    _ppo[(num_blocks,)](
        log_probs,
        old_log_probs,
        advantages,
        mask.contiguous().view(torch.uint8),
        row_weights.float().contiguous(),
        gradient,
        sums,
        log_probs.numel(),
        log_probs.shape[1],
        *clip,
        max_log_ratio,
        block=_BLOCK,
    )
    return gradient, sums.sum(0, dtype=torch.float64).float()
