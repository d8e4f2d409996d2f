"""How sure a mean over tasks is.

Episodes of one task are alike, so that they are no independent observations: each task counts as
one, with the mean of its episodes. Where each task's value is 0 or 1, Wilson's formula applies;
elsewhere the tasks are resampled (bootstrap percentiles).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from turnwise.runs.headline import wilson_interval

Z = 1.959964
"""Standard deviations on each side of a mean that hold 95 % of a normal distribution."""
_NUM_RESAMPLES = 2000


@dataclass(frozen=True)
class Estimate:
    """A mean over tasks with its 95 % interval."""

    value: float
    low: float
    high: float
    num_tasks: int

    @classmethod
    def over_tasks(cls, values: Sequence[float], seed: int, is_rate: bool = True) -> Estimate:
        """Return the mean of one value a task; there is at least one."""
        mean = statistics.fmean(values)
        if is_rate and all(value in (0.0, 1.0) for value in values):
            low, high = wilson_interval(mean, len(values))
        else:
            low, high = _resampled(values, seed)
        return cls(mean, low, high, len(values))

    def to_dict(self) -> dict[str, float]:
        return {
            "value": self.value,
            "low": self.low,
            "high": self.high,
            "num_tasks": self.num_tasks,
        }


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean of one value a task; 0 for a single task.

    Where each task has as many episodes, this is the cluster-robust error of the episodes' mean.
    """
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def _resampled(values: Sequence[float], seed: int) -> tuple[float, float]:
    """The middle 95 % of the means of tasks that are drawn again with replacement.

    One task less is drawn than there are: then the variance of these means is the unbiased
    estimate, s**2 / n (Rao and Wu 1988); with n draws it is (n - 1) / n of it.
    """
    import numpy as np

    rng = np.random.default_rng(seed)
    all_values = np.asarray(values, dtype=np.float64)
    num_drawn = max(len(values) - 1, 1)
    means = all_values[rng.integers(len(values), size=(_NUM_RESAMPLES, num_drawn))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)
