"""ReMax as one GPU kernel, since launches are most of its cost.

`advantages/outcome.py` has the formula; `bench/gpu/check.py` compares the two.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


# Triton reads annotations as its own, so that the arguments have none.
@triton.jit  # type: ignore[untyped-decorator]
def _remax(  # type: ignore[no-untyped-def]
    rewards, mask, baselines, advantages, returns, length, block: tl.constexpr
):
    """One episode, from its end: the reward-to-go, and the reward-to-go minus the baseline."""
    row = tl.program_id(0).to(tl.int64) * length
    baseline = tl.load(baselines + tl.program_id(0)).to(tl.float32)
    earned_later = 0.0
    for start in range((length - 1) // block * block, -1, -block):
        place = start + tl.arange(0, block)
        inside = place < length
        counts = tl.load(mask + row + place, mask=inside, other=0) != 0
        reward = tl.load(rewards + row + place, mask=counts, other=0.0).to(tl.float32)
        sums = tl.cumsum(reward, 0, reverse=True) + earned_later
        tl.store(returns + row + place, tl.where(counts, sums, 0.0), mask=inside)
        tl.store(advantages + row + place, tl.where(counts, sums - baseline, 0.0), mask=inside)
        earned_later += tl.sum(reward, 0)


def remax_on_gpu(
    rewards: torch.Tensor, mask: torch.Tensor, baselines: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and returns [B, T] in float32."""
    advantages, returns = torch.empty((2, *rewards.shape), device=rewards.device).unbind()
    num_rows, length = rewards.shape
    _remax[(num_rows,)](
        rewards.contiguous(),
        mask.contiguous().view(torch.uint8),
        baselines.contiguous(),
        advantages,
        returns,
        length,
        block=1024,
    )
    return advantages, returns
