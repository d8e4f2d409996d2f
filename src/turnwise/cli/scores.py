"""How well a player did on many episodes, with how sure that is."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from turnwise.cli.intervals import Estimate, Z, standard_error

if TYPE_CHECKING:
    from turnwise.episode import AgentRecord, EpisodeResult


@dataclass(frozen=True)
class Scores:
    """Figures of one player; rates are shares of the episodes.

    Success and reward are means over tasks. Where a row was played several times, its episodes are
    one task: they are alike, and counting each of them would make the intervals too narrow.
    """

    episodes: int
    """Those that did not fail."""
    tasks: int
    """Rows or seeds that these were of: what the intervals count."""
    success: float | None
    """None: the environment does not tell."""
    success_low: float | None
    success_high: float | None
    """95 % interval; Wilson's formula, which holds near 0 and 1 too, where a task has one value."""
    reward: float
    reward_std: float
    """Over episodes."""
    reward_margin: float
    """Half of the mean's 95 % interval."""
    turns: float
    truncated: float
    errors: float
    """Of all that were asked for."""

    @classmethod
    def of(
        cls, results: Sequence[EpisodeResult], tells_success: bool, seed: int = 0
    ) -> Scores | None:
        """Return None if every episode failed; `seed` is that of resampled intervals."""
        whole = [r for r in results if not r.status.is_error]
        tasks = _by_task(whole)
        if not tasks:
            return None
        every = [agent for agents in tasks for agent in agents]
        if len(tasks) == 1:  # of one row nothing is known but how its episodes differ
            tasks = [[agent] for agent in every]
        rewards = [statistics.fmean(map(_reward, agents)) for agents in tasks]
        success = Estimate.over_tasks(
            [statistics.fmean(a.trajectory.success for a in agents) for agents in tasks], seed
        )
        return cls(
            episodes=len(whole),
            tasks=len({r.group for r in whole}),
            success=success.value if tells_success else None,
            success_low=success.low if tells_success else None,
            success_high=success.high if tells_success else None,
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
    """The agents that have a reward, those of the episodes of one task together."""
    tasks: dict[int, list[AgentRecord]] = {}
    for result in results:
        scored = [agent for agent in result.agents if agent.reward is not None]
        if scored:
            tasks.setdefault(result.group, []).extend(scored)
    return list(tasks.values())


def _reward(agent: AgentRecord) -> float:
    assert agent.reward is not None
    return agent.reward.total


def tells_success(results: Sequence[EpisodeResult]) -> bool:
    """Whether the environment ever says how an episode went."""
    return any(
        "success" in info for r in results for agent in r.agents for info in agent.trajectory.infos
    )
