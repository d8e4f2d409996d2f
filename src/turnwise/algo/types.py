"""Types that the algorithms share."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch

TensorMetrics: TypeAlias = dict[str, torch.Tensor]
"""Scalar tensors without a gradient: reading one transfers it from the GPU, keeping it does not."""


class TokenTerms(NamedTuple):
    """What a loss function returns for each token; all [B, T]."""

    losses: torch.Tensor
    metrics: TensorMetrics
    """Values to average over the tokens; their gradients are ignored."""


TokenLoss: TypeAlias = Callable[..., TokenTerms]
"""(variable, *constants, mask) -> terms.

All arguments are [B, T] with 0 on masked tokens; the mask is 0 and 1 as floats. Autograd gives the
gradient, to `variable` alone.
"""

ROUNDING = 4
"""Differences of up to this many units in the last place of the numbers compared are rounding."""
