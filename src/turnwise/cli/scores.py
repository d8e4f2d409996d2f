"""Scores of a player over many episodes, and pass@k, with 95 % intervals.

Episodes of one task are not independent, so each task counts as one observation: the mean of its
episodes. Where each task's value is 0 or 1, the interval is Wilson's; otherwise the tasks are
resampled (bootstrap percentiles).

pass@k is how often at least one of k attempts at a task solves it. With n attempts of which c
solved the task, 1 - C(n-c, k) / C(n, k) is the fraction of subsets of k attempts with a solved one:
an unbiased estimate of pass@k for every k up to n.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from turnwise.errors import ConfigError
from turnwise.runs.headline import Z, wilson_interval

if TYPE_CHECKING:
    from turnwise.episode import AgentRecord, EpisodeResult

_NUM_RESAMPLES = 2000
NO_SUCCESS = (
    "pass@k needs to know which attempts solved their task, and no step reported "
    "info['success']: only the mean reward is given. Return {'success': True or False} with the "
    "last step of an episode."
)


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
    return any(agent.trajectory.reports_success for r in results for agent in r.agents)


@dataclass(frozen=True)
class TaskScore:
    """The attempts at one task; those that failed with an error are not counted."""

    task: int
    """Its index among the held-out tasks, from 0."""
    seed: int
    attempts: int
    solved: int | None
    """None: the environment does not report success."""
    reward: float | None
    """The mean; None: every attempt failed with an error."""

    def pass_at(self, k: int) -> float | None:
        """Return the estimate for k attempts; None if there are too few of them."""
        if self.solved is None or self.attempts < k:
            return None
        return pass_at_k(self.attempts, self.solved, k)

    def to_dict(self, ks: Sequence[int]) -> dict[str, Any]:
        found = asdict(self)
        if self.solved is not None and self.attempts:
            mean = self.solved / self.attempts
            low, high = wilson_interval(mean, self.attempts)
            found["mean"] = {"value": mean, "low": low, "high": high}
            found["pass_at_k"] = {str(k): self.pass_at(k) for k in ks}
        return found


@dataclass(frozen=True)
class AttemptScores:
    """All tasks: pass@k for some k, mean@n, and the mean reward."""

    num_attempts: int
    tasks: Sequence[TaskScore]
    pass_at: Mapping[int, Estimate]
    """By k; empty where success is not reported."""
    mean: Estimate | None
    """The share of attempts that solved their task, averaged over tasks."""
    reward: Estimate

    @classmethod
    def of(
        cls, results: Sequence[EpisodeResult], num_attempts: int, seed: int, reports: bool
    ) -> AttemptScores | None:
        """Return None if every attempt failed with an error.

        `reports`: whether the environment ever reports success.
        """
        if any(len(result.agents) > 1 for result in results):
            raise ConfigError(
                "--k counts the tasks that one agent solves, and this environment has several "
                "agents in an episode. Leave out --k."
            )
        groups: dict[int, list[EpisodeResult]] = {}
        for result in results:
            groups.setdefault(result.group, []).append(result)
        tasks = [_task_score(number, group, reports) for number, group in groups.items()]
        rewards = [task.reward for task in tasks if task.reward is not None]
        if not rewards:
            return None
        rates = [t.solved / t.attempts for t in tasks if t.solved is not None and t.attempts]
        pass_at = {}
        for k in shown_ks(num_attempts) if reports else ():
            values = [value for task in tasks if (value := task.pass_at(k)) is not None]
            if values:
                pass_at[k] = Estimate.over_tasks(values, seed)
        return cls(
            num_attempts,
            tasks,
            pass_at,
            Estimate.over_tasks(rates, seed) if rates else None,
            Estimate.over_tasks(rewards, seed, is_rate=False),
        )

    def to_dict(self) -> dict[str, Any]:
        ks = shown_ks(self.num_attempts)
        return {
            "k": self.num_attempts,
            "pass_at_k": {str(k): found.to_dict() for k, found in self.pass_at.items()} or None,
            "mean_at_k": None if self.mean is None else self.mean.to_dict(),
            "reward": self.reward.to_dict(),
            "reason": None if self.pass_at else NO_SUCCESS,
            "tasks": [task.to_dict(ks) for task in self.tasks],
        }


def pass_at_k(num_attempts: int, num_solved: int, k: int) -> float:
    """Return the unbiased estimate of the chance that one of k attempts solves the task.

    >>> pass_at_k(4, 1, 2), pass_at_k(4, 1, 4), pass_at_k(4, 0, 4)
    (0.5, 1.0, 0.0)
    """
    return 1.0 - math.comb(num_attempts - num_solved, k) / math.comb(num_attempts, k)


def shown_ks(most: int) -> list[int]:
    """Return the powers of two up to `most`, and `most` itself.

    >>> shown_ks(6)
    [1, 2, 4, 6]
    """
    powers = [2**power for power in range(most.bit_length()) if 2**power <= most]
    return powers if powers[-1] == most else [*powers, most]


def _task_score(number: int, attempts: Sequence[EpisodeResult], reports: bool) -> TaskScore:
    whole = [r for r in attempts if not r.status.is_error and r.reward is not None]
    rewards = [r.reward.total for r in whole if r.reward is not None]
    return TaskScore(
        number,
        attempts[0].seed,
        len(whole),
        sum(r.trajectory.success for r in whole) if reports else None,
        statistics.fmean(rewards) if rewards else None,
    )
