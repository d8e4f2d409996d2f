"""What an agent's words do: tool calls, a step in the environment, or a message back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from turnwise.chat import Message
from turnwise.deadlines import call_with_deadline
from turnwise.env import BaseEnvironment
from turnwise.episode.limits import Clock, EpisodeLimits
from turnwise.episode.opening import Abilities
from turnwise.episode.parts import Parts
from turnwise.episode.world import World, readable
from turnwise.errors import EnvironmentFault
from turnwise.tools import (
    ActionParser,
    ToolCall,
    ToolContext,
    ToolDefinition,
    ToolFailure,
    ToolRegistry,
    ToolResult,
    answer_of,
    get_parser,
)
from turnwise.tools.base import marked_tools
from turnwise.tools.parsers import other_format
from turnwise.types import EpisodeStatus, StepResult

ParserChoice: TypeAlias = ActionParser | str
"""A parser, or its name; `auto`: the one that fits the chat template."""

_OVER_LIMIT = "No tool calls are left. Answer without tools."
_STEP = "environment_step"


@dataclass(slots=True)
class Outcome:
    """What came of a turn."""

    observation: str = ""
    """What there is to read now."""
    messages: Sequence[Message] = ()
    """The same for the conversation."""
    state: str = ""
    """The state before."""
    reward: float = 0.0
    status: EpisodeStatus | None = None
    """How the episode ended by it; None: it goes on."""
    done: bool = False
    info: dict[str, Any] = field(default_factory=dict)
    calls: Sequence[ToolCall] = ()
    results: Sequence[ToolResult] = ()
    malformed: str | None = None
    other_format: str | None = None
    """The format of a call that the parser does not read."""


class Actions:
    """Carries out what an agent says, in one episode.

    `abilities` are those of the chat template into which the answers go, if there is one.
    """

    def __init__(
        self,
        abilities: Abilities | None,
        limits: EpisodeLimits,
        parts: Parts,
        clock: Clock,
        world: World | None = None,
        tools: ToolRegistry | None = None,
        parser: ParserChoice = "auto",
    ) -> None:
        self._abilities = abilities
        self._limits = limits
        self._parts = parts
        self._clock = clock
        self._world = world
        self._choice = parser
        self._tools = tools
        self._num_calls = 0
        self._told_in: Outcome | None = None
        self.parser: ActionParser | None = None
        self.definitions: Sequence[ToolDefinition] = ()
        self.context: ToolContext | None = None

    def begin(self) -> None:
        """The environment is there: its own tools join the others."""
        environment = None if self._world is None else self._world.environment
        if self._tools is None:
            if environment is None or not marked_tools(environment):
                return
            self._tools = ToolRegistry()
        if environment is not None:
            self._tools = self._tools.bind(environment)
        self.definitions = self._tools.definitions
        self.context = self._tools.open_context(environment)
        if isinstance(self._choice, str):
            template = None if self._abilities is None else self._abilities.chat.template
            self.parser = get_parser(self._choice, template=template, definitions=self.definitions)
        else:
            self.parser = self._choice

    async def act(self, text: str, *, in_thought: bool = False) -> Outcome:
        """Do what the text says: calls if there are any, else its answer is an action.

        `in_thought`: it begins inside of a thought. Nothing in a thought is done.
        """
        answer = answer_of(text, in_thought=in_thought)
        if self.parser is None or (in_thought and not answer):
            return await self._step(text, answer)
        with self._parts.part("tools"):
            parsed = self.parser.parse(text)
            unread = None
            if not parsed.calls:
                unread = other_format(text, self.parser, self.definitions)
        if parsed.is_empty:
            outcome = await self._step(text, answer)
            outcome.other_format = unread
            return outcome
        outcome = Outcome(
            state=await self._state(), malformed=parsed.malformed, other_format=unread
        )
        calls: list[ToolCall] = []
        results: list[ToolResult] = []
        answers: list[tuple[str, str]] = []
        outcome.calls, outcome.results = calls, results
        for call in parsed.calls:
            calls.append(call)
            answers.append((call.name, await self._call(call, outcome, results)))
            if outcome.status is not None:
                break
        if parsed.malformed is not None and outcome.status is None:
            answers.append(("", f"A call could not be read: {parsed.malformed}"))
            outcome.info.setdefault("invalid_action", True)
        outcome.observation = "\n\n".join(text for _, text in answers)
        if self._abilities is not None:
            outcome.messages = self._abilities.answers(answers)
        environment = self._environment
        if outcome.status is None and environment is not None:
            with self._parts.part("environment"):
                if environment.done:
                    outcome.status, outcome.done = EpisodeStatus.DONE, True
        return outcome

    async def close(self, timeout: float | None) -> None:
        if self.context is not None:
            await self.context.aclose(10.0 if timeout is None else timeout)

    @property
    def _environment(self) -> BaseEnvironment | None:
        return None if self._world is None else self._world.environment

    async def _state(self) -> str:
        if self._world is None:
            return ""
        with self._parts.part("environment"):
            return await self._world.describe(self._clock.within(self._limits.step_timeout))

    async def _step(self, text: str, answer: str) -> Outcome:
        if self._world is None:  # nobody to act upon: it was the answer
            return Outcome(status=EpisodeStatus.DONE, done=True)
        environment = self._environment
        with self._parts.part("environment"):
            action = text if environment is not None and environment.sees_thoughts else answer
            timeout = self._clock.within(self._limits.step_timeout)
            state, step = await self._world.step(action, timeout)
            message = {"role": "user", "content": step.observation}
            outcome = Outcome(step.observation, [message], state)
            _take_step(outcome, step)
        return outcome

    async def _call(self, call: ToolCall, outcome: Outcome, results: list[ToolResult]) -> str:
        """Carry out one call; the text is what the model is told."""
        limit = self._limits.max_tool_calls
        if limit is not None and self._num_calls >= limit:
            return self._refuse(call, outcome)
        self._num_calls += 1
        with self._parts.part("tools"):
            result = await self._execute(call)
        results.append(result)
        call.success, call.result = result.success, result.value
        if result.failure is ToolFailure.ENVIRONMENT:
            with self._parts.part("environment"):
                raise EnvironmentFault(result.text)
        if result.step is not None:
            with self._parts.part("environment"):
                _take_step(outcome, result.step)
        return readable(result.text)

    def _refuse(self, call: ToolCall, outcome: Outcome) -> str:
        """No calls are left; who calls again after being told so goes on for ever."""
        call.success, call.result = False, _OVER_LIMIT
        if self._told_in is None:
            self._told_in = outcome
        elif self._told_in is not outcome:
            outcome.status = EpisodeStatus.TRUNCATED_BY_TOOL_CALLS
        return _OVER_LIMIT

    async def _execute(self, call: ToolCall) -> ToolResult:
        assert self._tools is not None
        timeout = self._clock.within(self._limits.tool_timeout)
        result = await call_with_deadline(
            self._tools.execute_async,
            call,
            self.context,
            timeout=timeout,
            waiting_for=f"tool {call.name}",
            limit_name="limits.tool_timeout",
        )
        assert isinstance(result, ToolResult)
        return result


def as_call(text: str, outcome: Outcome) -> ToolCall:
    """A turn as a call, also where it was none: a step in the environment, or a failed attempt."""
    if outcome.calls:
        return outcome.calls[-1]
    if outcome.malformed is not None:
        return ToolCall("", {}, outcome.observation, success=False)
    return ToolCall(_STEP, {"action": text}, outcome.observation, success=True)


def _take_step(outcome: Outcome, step: StepResult) -> None:
    outcome.reward += step.reward
    outcome.info = {**outcome.info, **step.info} if outcome.info else step.info
    outcome.done = step.terminated
    if step.terminated:
        outcome.status = EpisodeStatus.DONE
    elif step.info.get("truncated"):
        outcome.status = EpisodeStatus.TRUNCATED_BY_ENVIRONMENT
    elif step.truncated:
        outcome.status = EpisodeStatus.TRUNCATED_BY_TURNS
