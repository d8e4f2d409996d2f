"""Statistics over groups of episodes that started from the same place."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np
import torch

from turnwise.algo.masked import ROUNDING
from turnwise.errors import ConfigError

GroupIndex: TypeAlias = torch.Tensor | np.ndarray[Any, Any] | Sequence[Any]
"""The group of each episode: [B] of ints, strings or anything that can be compared."""


@dataclass(frozen=True)
class Groups:
    """Groups of episodes, numbered from 0.

    >>> scores = torch.tensor([1.0, 5.0, 3.0])
    >>> Groups.from_index(["b", "a", "b"], scores).sum(scores)
    tensor([4., 5., 4.])
    """

    ids: torch.Tensor
    """[B], from 0 to the number of groups."""
    sizes: torch.Tensor
    """[B], the size of each episode's own group."""
    num_groups: int
    resolution: float
    """Differences of up to this fraction of a group's largest number count as 0: rounding."""

    @classmethod
    def from_index(
        cls, index: GroupIndex, rows: torch.Tensor, precision: torch.dtype = torch.float64
    ) -> Self:
        """Return the groups of the rows of a tensor [B, ...], on its device.

        `precision` is the type in which the numbers to compare were given.
        """
        labels = index.cpu().numpy() if isinstance(index, torch.Tensor) else np.asarray(index)
        if labels.shape != (len(rows),):
            raise ConfigError(
                f"index got an array of shape {labels.shape}, expected one group for each of the "
                f"{len(rows)} episodes: ({len(rows)},)"
            )
        names, inverse = np.unique(labels, return_inverse=True)
        counts = np.bincount(inverse, minlength=len(names))
        return cls(
            ids=torch.from_numpy(inverse).to(rows.device),
            sizes=torch.from_numpy(counts[inverse]).to(rows.device),
            num_groups=len(names),
            resolution=ROUNDING * torch.finfo(torch.promote_types(precision, torch.float32)).eps,
        )

    @property
    def is_alone(self) -> torch.Tensor:
        """[B], set where an episode is the only one of its group."""
        return self.sizes == 1

    def totals(self, x: torch.Tensor) -> torch.Tensor:
        """Sum over each group: [B, ...] -> [num_groups, ...]."""
        total = torch.zeros(self.num_groups, *x.shape[1:], dtype=x.dtype, device=x.device)
        return total.index_add_(0, self.ids, x)

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """Each episode's group total: [B, ...] -> [B, ...]."""
        return self.totals(x)[self.ids]

    def centred(self, x: torch.Tensor) -> torch.Tensor:
        """x minus its group's mean; exactly 0 for a group of one, and where all are equal."""
        mean = self.sum(x) / self.sizes
        return torch.where(self.is_alone, 0.0, self.without_rounding(x - mean, x))

    def without_rounding(self, differences: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Differences between the x of a group, [B, ...], with 0 for what is only rounding.

        Dividing by a standard deviation that is only rounding would turn rounding into advantages.
        """
        ids = self.ids.view(-1, *[1] * (x.dim() - 1)).expand_as(x)
        largest = torch.zeros(self.num_groups, *x.shape[1:], dtype=x.dtype, device=x.device)
        largest.scatter_reduce_(0, ids, x.abs(), "amax")
        is_rounding = differences.abs() <= self.resolution * largest[self.ids]
        return torch.where(is_rounding, 0.0, differences)  # NaN stays NaN

    def std(self, x: torch.Tensor) -> torch.Tensor:
        """Each episode's group standard deviation, unbiased: [B] -> [B]; 0 for a group of one."""
        return (self.sum(self.centred(x).square()) / (self.sizes - 1).clamp(min=1)).sqrt()

    def relative(self, x: torch.Tensor, norm_by_std: bool, epsilon: float) -> torch.Tensor:
        """x − mean, divided by std + epsilon if `norm_by_std`: [B] -> [B]; 0 for a group of one."""
        centred = self.centred(x)
        return centred / (self.std(x) + epsilon) if norm_by_std else centred

    def best_two(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the episodes with the two largest x of each group: two [num_groups].

        Of equals the earlier comes first. In a group of one, both are that one.
        """
        order = torch.argsort(x, descending=True, stable=True)
        order = order[torch.argsort(self.ids[order], stable=True)]
        sizes = torch.bincount(self.ids, minlength=self.num_groups)
        first = sizes.cumsum(0) - sizes
        return order[first], order[first + (sizes > 1)]
