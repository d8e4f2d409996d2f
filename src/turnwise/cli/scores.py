"""How well a player did on many episodes, with how sure that is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from turnwise.runs.headline import wilson_interval as wilson_interval

if TYPE_CHECKING:
    from turnwise.episode import EpisodeResult

_Z = 1.959964  # of a 95 % interval


@dataclass(frozen=True)
class Scores:
    """Figures of one player; rates are shares of the episodes."""

    episodes: int
    """Those that did not fail."""
    success: float | None
    """None: the environment does not tell."""
    success_low: float | None
    success_high: float | None
    """95 % interval, by Wilson's formula, which holds near 0 and 1 too."""
    reward: float
    reward_std: float
    reward_margin: float
    """Half of the mean's 95 % interval."""
    turns: float
    truncated: float
    errors: float
    """Of all that were asked for."""

    @classmethod
    def of(cls, results: Sequence[EpisodeResult], tells_success: bool) -> Scores | None:
        """None if every episode failed."""
        whole = [r for r in results if not r.status.is_error]
        agents = [agent for r in whole for agent in r.agents if agent.reward is not None]
        if not agents:
            return None
        rewards = [agent.reward.total for agent in agents if agent.reward is not None]
        std = statistics.stdev(rewards) if len(rewards) > 1 else 0.0
        success = statistics.fmean(agent.trajectory.success for agent in agents)
        low, high = wilson_interval(success, len(agents))
        return cls(
            episodes=len(whole),
            success=success if tells_success else None,
            success_low=low if tells_success else None,
            success_high=high if tells_success else None,
            reward=statistics.fmean(rewards),
            reward_std=std,
            reward_margin=_Z * std / math.sqrt(len(rewards)),
            turns=sum(r.num_turns for r in whole) / len(whole),
            truncated=statistics.fmean(r.status.is_truncated for r in whole),
            errors=1 - len(whole) / len(results),
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def tells_success(results: Sequence[EpisodeResult]) -> bool:
    """Whether the environment ever says how an episode went."""
    return any(
        "success" in info for r in results for agent in r.agents for info in agent.trajectory.infos
    )
