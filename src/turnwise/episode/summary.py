"""`EpisodeSummary`: counts over episodes: statuses, turns, tokens, tool calls, errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from turnwise.episode.types import AgentRecord, EpisodeResult, TurnRecord
from turnwise.types import EpisodeStatus

MALFORMED = "malformed_call"


@dataclass
class EpisodeSummary:
    """Counts over one or more episodes. Fields can be read by item too."""

    num_episodes: int = 0
    statuses: Counter[EpisodeStatus] = field(default_factory=Counter)
    """How many episodes ended with which status."""
    num_turns: int = 0
    num_sampled_tokens: int = 0
    """Tokens sampled by the policy, which are trained on."""
    num_context_tokens: int = 0
    """Prompt tokens: prompts, template, observations, tool results."""
    tool_calls: Counter[str] = field(default_factory=Counter)
    """Calls that were executed, by the name that the model wrote."""
    failures: Counter[str] = field(default_factory=Counter)
    """Failed calls by kind; `malformed_call` are those that could not be read."""
    total_reward: float = 0.0
    """The sum over all agents that have a reward."""
    num_successes: int = 0
    """Agents whose last step reported `success`."""
    seconds: Counter[str] = field(default_factory=Counter)
    """Seconds by component; `total` is the sum over episodes, which run at the same time."""
    errors: Counter[str] = field(default_factory=Counter)
    """Error messages, and how often each occurred."""

    @classmethod
    def of(cls, results: EpisodeResult | Iterable[EpisodeResult]) -> EpisodeSummary:
        """Returns the summary of one result or of many."""
        summary = cls()
        for result in [results] if isinstance(results, EpisodeResult) else results:
            summary.add(result)
        return summary

    def add(self, result: EpisodeResult) -> None:
        self.num_episodes += 1
        self.statuses[result.status] += 1
        self.seconds.update(result.seconds)
        if result.error is not None:
            self.errors[result.error] += 1
        for agent in result.agents:
            self._add_agent(agent)

    def _add_agent(self, agent: AgentRecord) -> None:
        self.num_sampled_tokens += agent.num_sampled_tokens
        self.num_context_tokens += len(agent.stream) - agent.num_sampled_tokens
        self.num_successes += agent.trajectory.success
        if agent.reward is not None:
            self.total_reward += agent.reward.total
        for turn in agent.actions:
            self.add_turn(turn)

    def add_turn(self, turn: TurnRecord) -> None:
        self.num_turns += 1
        for result in turn.tool_results:
            self.tool_calls[result.name] += 1
            if result.failure is not None:
                self.failures[str(result.failure)] += 1
        if turn.malformed is not None:
            self.failures[MALFORMED] += 1

    @property
    def num_tool_calls(self) -> int:
        return self.tool_calls.total()

    @property
    def num_failed_calls(self) -> int:
        return self.failures.total()

    @property
    def num_errors(self) -> int:
        """The number of episodes that failed."""
        return sum(number for status, number in self.statuses.items() if status.is_error)

    @property
    def mean_reward(self) -> float:
        """The mean over episodes that did not fail."""
        num_scored = self.num_episodes - self.num_errors
        return self.total_reward / num_scored if num_scored else 0.0

    def __getitem__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(self, name):
            raise KeyError(f"an episode summary has no {name!r}")
        return getattr(self, name)

    def __str__(self) -> str:
        parts = [
            f"{self.num_episodes} episodes ({_listed(self.statuses)})",
            f"{self.num_turns} turns",
            f"{self.num_sampled_tokens} tokens sampled",
            f"mean reward {self.mean_reward:.3f}",
        ]
        if self.tool_calls:
            parts.append(f"tools: {_listed(self.tool_calls)}")
        if self.failures:
            parts.append(f"failed calls: {_listed(self.failures)}")
        return "; ".join(parts)


def _listed(counts: Counter[Any]) -> str:
    return ", ".join(f"{name} {number}" for name, number in counts.most_common())
