"""`MultiTurnManager`: tools, parser and environment by hand, one model output at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from turnwise.deadlines import run_sync
from turnwise.env import BaseEnvironment
from turnwise.episode.actions import Actions, Outcome, as_call
from turnwise.episode.environment_session import CallMode, EnvironmentSession
from turnwise.episode.options import EpisodeLimits, ParserChoice
from turnwise.episode.summary import EpisodeSummary
from turnwise.episode.types import TurnRecord
from turnwise.episode.watchdog import EpisodeTimer
from turnwise.errors import ConfigError
from turnwise.inference import FinishReason
from turnwise.tools import ToolCall, ToolRegistry, ToolResult


@dataclass(frozen=True)
class ManagedTurn:
    """One output of a model, and what carrying it out gave."""

    model_output: str
    observation_before: str
    """The observation that the output answers."""
    tool_call: ToolCall
    """The last call in the output, with its result. An output without a call is an action, shown
    as a call of `environment_step`; a call that could not be read has no name, and its result says
    why."""
    observation: str
    """The text that the model reads next."""
    reward: float = 0.0
    done: bool = False
    """Whether the episode is over."""
    info: dict[str, Any] = field(default_factory=dict)
    tool_calls: Sequence[ToolCall] = ()
    """All calls in the output."""
    tool_results: Sequence[ToolResult] = ()
    """The results of the calls that were executed, with times and kinds of failure."""


class MultiTurnManager:
    """Carries out the outputs of a model, with tools and an environment, and counts them.

    The caller provides the outputs; `MultiTurnInferenceEngine` takes a manager and samples them.

    >>> from turnwise.tools import JSONActionParser
    >>> registry = ToolRegistry()
    >>> @registry.register
    ... def add(a: int, b: int) -> int:
    ...     return a + b
    >>> manager = MultiTurnManager(registry, JSONActionParser())
    >>> manager.step('{"tool": "add", "arguments": {"a": 1, "b": 2}}', "").tool_call.result
    3
    """

    def __init__(
        self,
        registry: ToolRegistry,
        parser: ParserChoice = "json",
        environment: BaseEnvironment | None = None,
        limits: EpisodeLimits | None = None,
    ) -> None:
        if not isinstance(registry, ToolRegistry):
            raise ConfigError(
                f"registry got {type(registry).__name__}, expected a ToolRegistry. "
                "Make one of your tools: ToolRegistry([...])"
            )
        self.registry = registry
        self.parser = parser
        self.environment = environment
        self.limits = limits or EpisodeLimits()
        self.reset()

    def reset(self) -> None:
        """Forgets the turns, for a new episode; the caller resets the environment."""
        self.close()
        self.turns: list[ManagedTurn] = []
        self._summary = EpisodeSummary(num_episodes=1)
        session = None
        if self.environment is not None:
            session = EnvironmentSession(self.environment, CallMode(), self.limits.max_observation)
            session.attach(self.environment)
        self._actions = Actions(
            None, self.limits, EpisodeTimer(), session, self.registry, self.parser
        )
        self._actions.begin()

    def step(self, model_output: str, observation: str = "") -> ManagedTurn:
        """Carries out one output of the model, which it gave to `observation`.

        A failing environment raises an `EnvironmentFault` or its own exception; a failing tool is
        reported in the turn.
        """
        return run_sync(self.step_async(model_output, observation))

    async def step_async(self, model_output: str, observation: str = "") -> ManagedTurn:
        """`step` for async code."""
        outcome = await self._actions.act(model_output)
        self._count(model_output, outcome)
        turn = ManagedTurn(
            model_output,
            observation,
            as_call(model_output, outcome),
            outcome.observation,
            outcome.reward,
            outcome.status is not None,
            outcome.info,
            outcome.calls,
            outcome.results,
        )
        self.turns.append(turn)
        return turn

    def get_episode_summary(self) -> EpisodeSummary:
        """Returns turns, calls by tool and failures by kind since the last `reset`."""
        return self._summary

    @property
    def summary(self) -> EpisodeSummary:
        return self._summary

    def close(self) -> None:
        """Closes the context of the tools. May be called twice."""
        actions: Actions | None = getattr(self, "_actions", None)
        if actions is not None and actions.context is not None:
            actions.context.close()

    def _count(self, text: str, outcome: Outcome) -> None:
        record = TurnRecord((0, 0), text, FinishReason.STOP, 0)
        record.tool_results, record.malformed = outcome.results, outcome.malformed
        self._summary.add_turn(record)
        self._summary.total_reward += outcome.reward
        self._summary.num_successes += bool(outcome.info.get("success", False))
        if outcome.status is not None:
            self._summary.statuses[outcome.status] += 1
