"""Scores of a player over many episodes, with 95 % intervals.

Episodes of one task are not independent, so each task counts as one observation: the mean of its
episodes. Where each task's value is 0 or 1, the interval is Wilson's; otherwise the tasks are
resampled (bootstrap percentiles).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from turnwise.runs.headline import Z, wilson_interval

if TYPE_CHECKING:
    from turnwise.episode import AgentRecord, EpisodeResult

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
        """Return the mean of one value per task, of at least one task."""
        mean = statistics.fmean(values)
        if is_rate and all(value in (0.0, 1.0) for value in values):
            low, high = wilson_interval(mean, len(values))
        else:
            low, high = _resampled(values, seed)
        return cls(mean, low, high, len(values))

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean of one value per task; 0 for a single task.

    If all tasks have equally many episodes, it is the cluster-robust error of the episodes' mean.
    """
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def _resampled(values: Sequence[float], seed: int) -> tuple[float, float]:
    """Return the middle 95 % of the means of tasks that are drawn with replacement.

    Of n tasks n - 1 are drawn, so that the variance of these means is the unbiased estimate
    s**2 / n (Rao and Wu 1988); with n draws it would be (n - 1) / n of it.
    """
    import numpy as np

    rng = np.random.default_rng(seed)
    all_values = np.asarray(values, dtype=np.float64)
    num_drawn = max(len(values) - 1, 1)
    means = all_values[rng.integers(len(values), size=(_NUM_RESAMPLES, num_drawn))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


@dataclass(frozen=True)
class Scores:
    """Scores of one player; rates are fractions of the episodes.

    Success and reward are means over tasks. All episodes of a row are one task: counting each of
    them would make the intervals too narrow.
    """

    episodes: int
    """Episodes without an error."""
    tasks: int
    """The rows or seeds of these episodes, which the intervals count."""
    success: float | None
    """None: the environment does not report success."""
    success_low: float | None
    success_high: float | None
    """The 95 % interval."""
    reward: float
    reward_std: float
    """Standard deviation over episodes."""
    reward_margin: float
    """Half of the 95 % interval of the mean."""
    turns: float
    truncated: float
    errors: float
    """Fraction of all episodes that were requested."""

    @classmethod
    def of(cls, results: Sequence[EpisodeResult], reports: bool, seed: int = 0) -> Scores | None:
        """Return None if every episode failed with an error.

        `reports`: whether the environment ever reports success; `seed` is that of the bootstrap.
        """
        whole = [r for r in results if not r.status.is_error]
        tasks = _by_task(whole)
        if not tasks:
            return None
        every = [agent for agents in tasks for agent in agents]
        if len(tasks) == 1:  # then the episodes of the only row are the observations
            tasks = [[agent] for agent in every]
        rewards = [statistics.fmean(map(_reward, agents)) for agents in tasks]
        success = Estimate.over_tasks(
            [statistics.fmean(a.trajectory.success for a in agents) for agents in tasks], seed
        )
        return cls(
            episodes=len(whole),
            tasks=len({r.group for r in whole}),
            success=success.value if reports else None,
            success_low=success.low if reports else None,
            success_high=success.high if reports else None,
            reward=statistics.fmean(rewards),
            reward_std=statistics.stdev(map(_reward, every)) if len(every) > 1 else 0.0,
            reward_margin=Z * standard_error(rewards),
            turns=sum(r.num_turns for r in whole) / len(whole),
            truncated=statistics.fmean(r.status.is_truncated for r in whole),
            errors=1 - len(whole) / len(results),
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def _by_task(results: Sequence[EpisodeResult]) -> list[list[AgentRecord]]:
    """Return the agents that have a reward, grouped by task."""
    tasks: dict[int, list[AgentRecord]] = {}
    for result in results:
        scored = [agent for agent in result.agents if agent.reward is not None]
        if scored:
            tasks.setdefault(result.group, []).extend(scored)
    return list(tasks.values())


def _reward(agent: AgentRecord) -> float:
    assert agent.reward is not None
    return agent.reward.total


def reports_success(results: Sequence[EpisodeResult]) -> bool:
    """Return whether any step reported `info["success"]`."""
    return any(
        "success" in info for r in results for agent in r.agents for info in agent.trajectory.infos
    )
