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
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from turnwise.errors import ConfigError
from turnwise.runs.headline import Z, wilson_interval

if TYPE_CHECKING:
    from turnwise.episode import EpisodeResult

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


def player_scores(
    results: Sequence[EpisodeResult], reports: bool, seed: int = 0
) -> dict[str, Any] | None:
    """Return the scores of one player; None if every episode failed with an error.

    Success and reward are means over tasks, with 95 % intervals. All episodes of a row are one
    task: counting each of them would make the intervals too narrow. Rates are fractions of the
    episodes. `reports`: whether the environment ever reports success.
    """
    whole = [result for result in results if not result.status.is_error]
    by_task: dict[int, list[tuple[float, bool]]] = {}
    for result in whole:
        for agent in result.agents:
            if agent.reward is not None:
                outcome = (agent.reward.total, agent.trajectory.success)
                by_task.setdefault(result.group, []).append(outcome)
    if not by_task:
        return None
    tasks = list(by_task.values())
    every = [outcome for outcomes in tasks for outcome in outcomes]
    if len(tasks) == 1:  # then the episodes of the only row are the observations
        tasks = [[outcome] for outcome in every]
    rewards = [statistics.fmean(reward for reward, _ in outcomes) for outcomes in tasks]
    success = Estimate.over_tasks(
        [statistics.fmean(solved for _, solved in outcomes) for outcomes in tasks], seed
    )
    return {
        "episodes": len(whole),
        "tasks": len({result.group for result in whole}),
        "success": success.value if reports else None,
        "success_low": success.low if reports else None,
        "success_high": success.high if reports else None,
        "reward": statistics.fmean(rewards),
        "reward_std": statistics.stdev(reward for reward, _ in every) if len(every) > 1 else 0.0,
        "reward_margin": Z * standard_error(rewards),  # half of the interval
        "turns": sum(result.num_turns for result in whole) / len(whole),
        "truncated": statistics.fmean(result.status.is_truncated for result in whole),
        "errors": 1 - len(whole) / len(results),
    }


def attempt_scores(
    results: Sequence[EpisodeResult], num_attempts: int, seed: int, reports: bool
) -> dict[str, Any] | None:
    """Return pass@k, mean@n and reward over all tasks and of each; None if every attempt failed.

    Attempts that failed with an error are not counted, and a pass@k leaves out tasks with fewer
    than k others. `reports`: whether the environment ever reports success.
    """
    if any(len(result.agents) > 1 for result in results):
        raise ConfigError(
            "--k counts the tasks that one agent solves, and this environment has several "
            "agents in an episode. Leave out --k."
        )
    groups: dict[int, list[EpisodeResult]] = {}
    for result in results:
        groups.setdefault(result.group, []).append(result)
    ks = shown_ks(num_attempts)
    tasks: list[dict[str, Any]] = []
    passed: dict[int, list[float]] = {k: [] for k in ks}
    for number, attempts in groups.items():
        whole = [r for r in attempts if not r.status.is_error and r.reward is not None]
        rewards = [r.reward.total for r in whole if r.reward is not None]
        solved = sum(r.trajectory.success for r in whole) if reports else None
        task: dict[str, Any] = {
            "task": number,
            "seed": attempts[0].seed,
            "attempts": len(whole),
            "solved": solved,
            "reward": statistics.fmean(rewards) if rewards else None,
        }
        if solved is not None and whole:
            mean = solved / len(whole)
            low, high = wilson_interval(mean, len(whole))
            task["mean"] = {"value": mean, "low": low, "high": high}
            enough = [k for k in ks if k <= len(whole)]
            task["pass_at_k"] = dict.fromkeys(map(str, ks))
            for k in enough:
                task["pass_at_k"][str(k)] = pass_at_k(len(whole), solved, k)
                passed[k].append(task["pass_at_k"][str(k)])
        tasks.append(task)
    rewards = [task["reward"] for task in tasks if task["reward"] is not None]
    if not rewards:
        return None
    rates = [task["mean"]["value"] for task in tasks if "mean" in task]
    pass_at = {str(k): asdict(Estimate.over_tasks(passed[k], seed)) for k in ks if passed[k]}
    return {
        "k": num_attempts,
        "pass_at_k": pass_at or None,
        "mean_at_k": asdict(Estimate.over_tasks(rates, seed)) if rates else None,
        "reward": asdict(Estimate.over_tasks(rewards, seed, is_rate=False)),
        "reason": None if pass_at else NO_SUCCESS,
        "tasks": tasks,
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
