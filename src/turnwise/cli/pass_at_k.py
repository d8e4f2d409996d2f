"""pass@k: how often at least one of k attempts at a task solves it.

With n attempts of which c solved the task, 1 - C(n-c, k) / C(n, k) is the fraction of subsets of k
attempts with a solved one: an unbiased estimate of pass@k for every k up to n. Intervals are over
tasks, since attempts at one task are not independent.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from turnwise.cli.scores import Estimate
from turnwise.errors import ConfigError
from turnwise.runs.headline import wilson_interval

if TYPE_CHECKING:
    from turnwise.episode import EpisodeResult

NO_SUCCESS = (
    "pass@k needs to know which attempts solved their task, and no step reported "
    "info['success']: only the mean reward is given. Return {'success': True or False} with the "
    "last step of an episode."
)


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
