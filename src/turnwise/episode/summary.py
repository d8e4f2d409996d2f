"""Figures of one episode or many: how they ended, how long they were, what went wrong."""

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
    """What happened in some episodes, in numbers. Fields can be read by item too."""

    num_episodes: int = 0
    statuses: Counter[EpisodeStatus] = field(default_factory=Counter)
    """How many ended in which way."""
    num_turns: int = 0
    num_sampled_tokens: int = 0
    """By the policy: the tokens that are trained on."""
    num_context_tokens: int = 0
    """Prompts, template, observations, tool results."""
    tool_calls: Counter[str] = field(default_factory=Counter)
    """Calls that were carried out, by the name that the model wrote."""
    failures: Counter[str] = field(default_factory=Counter)
    """Calls that did not work, by kind; `malformed_call` for those that could not be read."""
    total_reward: float = 0.0
    """Of all agents that have one."""
    num_successes: int = 0
    """Agents whose last step said `success`."""
    seconds: Counter[str] = field(default_factory=Counter)
    """By part; `total` is the sum over episodes, which run at the same time."""
    errors: Counter[str] = field(default_factory=Counter)
    """What went wrong, and how often."""

    @classmethod
    def of(cls, results: EpisodeResult | Iterable[EpisodeResult]) -> EpisodeSummary:
        """The summary of one result or of many."""
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
        for turn in agent.turns:
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
        """Episodes that failed."""
        return sum(number for status, number in self.statuses.items() if status.is_error)

    @property
    def mean_reward(self) -> float:
        """An episode; those that failed have none and do not count."""
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
