"""Random batches with ragged masks, of the sizes of numbers that training meets."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

NUM_ROWS, LENGTH, GROUP_SIZE = 32, 200, 4


@dataclass(frozen=True)
class Batch:
    """All [NUM_ROWS, LENGTH] but for `index` and `reward_parts`."""

    mask: torch.Tensor
    """int64, as VERL's."""
    index: np.ndarray[Any, Any]
    """[NUM_ROWS], the group of each row, in no order."""
    rewards: torch.Tensor
    """A little on each policy token, the score on the last one."""
    values: torch.Tensor
    old: torch.Tensor
    """Log-probs at rollout time."""
    new: torch.Tensor
    """Log-probs now."""
    advantages: torch.Tensor
    weights: torch.Tensor
    """Importance weights."""
    sum_pi_squared: torch.Tensor
    reward_parts: torch.Tensor
    """[NUM_ROWS, 3]."""


def make_batch(
    seed: int, turns: Literal["one", "several"] = "several", empty_row: bool = True
) -> Batch:
    """`several` turns leave holes in the mask; an `empty_row` has no policy token at all."""
    random = torch.Generator().manual_seed(seed)
    shape = (NUM_ROWS, LENGTH)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=random)

    lengths = torch.randint(10, LENGTH + 1, (NUM_ROWS, 1), generator=random)
    mask = torch.arange(LENGTH) < lengths
    if turns == "several":
        # A turn or an observation lasts some 8 tokens; a row may begin with either.
        mask &= (uniform(*shape) < 0.12).cumsum(1) % 2 == lengths % 2
        mask[:, 5] = True
    if empty_row:
        mask[3] = False
    last = mask & (mask.flip(1).cumsum(1).flip(1) == 1)
    score = torch.randint(0, 5, (NUM_ROWS, 1), generator=random) / 4
    old = uniform(*shape).clamp(min=1e-4).log() * 0.7
    # Most tokens move a little, one in fifty so far that it meets every bound.
    far = (uniform(*shape) < 0.02) * normal(*shape) * 2.0
    order = torch.randperm(NUM_ROWS, generator=random).numpy()
    return Batch(
        mask=mask.long(),
        index=np.array([f"task-{i // GROUP_SIZE}" for i in range(NUM_ROWS)])[order],
        rewards=last * score + mask * normal(*shape) * 0.01,
        values=0.5 + 0.3 * normal(*shape),
        old=old,
        new=(old + 0.1 * normal(*shape) + far).clamp(max=-1e-4),
        advantages=normal(*shape),
        weights=(0.2 * normal(*shape)).exp(),
        sum_pi_squared=uniform(*shape),
        reward_parts=normal(NUM_ROWS, 3),
    )


def assert_same(
    mine: torch.Tensor,
    expected: torch.Tensor | float,
    mask: torch.Tensor | None = None,
    tolerance: float = 1e-5,
) -> None:
    """The largest absolute difference, on the mask, is below the tolerance."""
    difference = (mine.detach().double() - torch.as_tensor(expected).detach().double()).abs()
    if mask is not None:
        difference = difference[mask.bool()]
    assert float(difference.max()) < tolerance
