"""`MultiTurnManager`: tools, parser and environment by hand, one model output at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from turnwise.deadlines import run_sync
from turnwise.env import BaseEnvironment
from turnwise.episode.actions import Actions, Outcome, ParserChoice, as_call
from turnwise.episode.limits import Clock, EpisodeLimits
from turnwise.episode.parts import Parts
from turnwise.episode.summary import EpisodeSummary
from turnwise.episode.types import TurnRecord
from turnwise.episode.waiting import Waits
from turnwise.episode.world import CallStyle, World
from turnwise.errors import ConfigError
from turnwise.inference import FinishReason
from turnwise.tools import ToolCall, ToolRegistry, ToolResult


@dataclass(frozen=True)
class ManagedTurn:
    """What one output of a model came to."""

    model_output: str
    """What it was."""
    observation_before: str
    """What the model had read."""
    tool_call: ToolCall
    """The last call in it, with its result. An output without a call is an action in the
    environment, and stands here as the call `environment_step`; a call that could not be read has
    no name, and its result says why."""
    observation: str
    """What the model is to read now."""
    reward: float = 0.0
    done: bool = False
    """Whether the episode is over."""
    info: dict[str, Any] = field(default_factory=dict)
    tool_calls: Sequence[ToolCall] = ()
    """All calls in it."""
    tool_results: Sequence[ToolResult] = ()
    """Of the calls that were carried out, with times and kinds of failure."""


class MultiTurnManager:
    """Carries out what a model says, with tools and an environment, and keeps count.

    It is the acting half of an episode. Who makes the model's outputs is the caller's affair; give
    it to `MultiTurnInferenceEngine` to have them sampled.

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
        """Forget the turns, for a new episode; the environment is the caller's to reset."""
        self.close()
        self.turns: list[ManagedTurn] = []
        self._summary = EpisodeSummary(num_episodes=1)
        world = None
        if self.environment is not None:
            world = World(self.environment, CallStyle(), self.limits.max_observation)
            world.adopt(self.environment)
        self._actions = Actions(
            None,
            self.limits,
            Parts(Waits()),
            Clock(None),
            world,
            self.registry,
            self.parser,
        )
        self._actions.begin()

    def step(self, model_output: str, observation: str = "") -> ManagedTurn:
        """Carry out one output of the model, which came after reading `observation`.

        An environment that breaks is an `EnvironmentFault` or its own exception; what goes wrong
        with a tool is in the turn.
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
        """Turns, calls by tool and failures by kind since the last `reset`."""
        return self._summary

    @property
    def summary(self) -> EpisodeSummary:
        return self._summary

    def close(self) -> None:
        """Close what the tools keep. May be called twice."""
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
