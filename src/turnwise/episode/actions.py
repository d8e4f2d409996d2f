"""Carries out an agent's turn: tool calls, a step in the environment, or an error message."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from turnwise.chat import Message
from turnwise.episode.environment_session import EnvironmentSession, valid_text
from turnwise.episode.messages import MessageBuilder
from turnwise.episode.options import EpisodeLimits, ParserChoice
from turnwise.episode.watchdog import EpisodeTimer
from turnwise.errors import DeadlineExceeded, EnvironmentFault
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

_OVER_LIMIT = "No tool calls are left. Answer without tools."


@dataclass(slots=True)
class Outcome:
    """The result of carrying out a turn."""

    observation: str = ""
    """The text that the agent reads next."""
    messages: Sequence[Message] = ()
    """The same as messages of the conversation."""
    state: str = ""
    """The state description before the turn."""
    reward: float = 0.0
    status: EpisodeStatus | None = None
    """The status if the turn ended the episode; None if the episode continues."""
    done: bool = False
    info: dict[str, Any] = field(default_factory=dict)
    calls: list[ToolCall] = field(default_factory=list)
    results: list[ToolResult] = field(default_factory=list)
    malformed: str | None = None
    other_format: str | None = None
    """The format of a call that this run's parser does not read."""

    def add_step(self, step: StepResult) -> None:
        self.reward += step.reward
        self.info = {**self.info, **step.info} if self.info else step.info
        self.done = step.terminated
        if step.terminated:
            self.status = EpisodeStatus.DONE
        elif step.info.get("truncated"):
            self.status = EpisodeStatus.TRUNCATED_BY_ENVIRONMENT
        elif step.truncated:
            self.status = EpisodeStatus.TRUNCATED_BY_TURNS


class Actions:
    """Carries out the turns of one episode.

    `messages` builds the messages of tool results; None if there is no conversation to add to.
    """

    def __init__(
        self,
        messages: MessageBuilder | None,
        limits: EpisodeLimits,
        timer: EpisodeTimer,
        session: EnvironmentSession | None = None,
        tools: ToolRegistry | None = None,
        parser: ParserChoice = "auto",
    ) -> None:
        self._messages = messages
        self._limits = limits
        self._timer = timer
        self._session = session
        self._choice = parser
        self._tools = tools
        self._num_calls = 0
        self._refused_in: Outcome | None = None
        """The first turn with a call over the limit."""
        self.parser: ActionParser | None = None
        self.definitions: Sequence[ToolDefinition] = ()
        self.context: ToolContext | None = None

    def begin(self) -> None:
        """Adds the environment's own tools; called when the environment has been reset."""
        environment = None if self._session is None else self._session.environment
        if self._tools is None:
            if environment is None or not marked_tools(environment):
                return
            self._tools = ToolRegistry()
        if environment is not None:
            self._tools = self._tools.bind(environment)
        self.definitions = self._tools.definitions
        self.context = self._tools.open_context(environment)
        if isinstance(self._choice, str):
            template = None if self._messages is None else self._messages.chat.template
            self.parser = get_parser(self._choice, template=template, definitions=self.definitions)
        else:
            self.parser = self._choice

    async def act(self, text: str, *, in_thought: bool = False) -> Outcome:
        """Executes the tool calls in a turn; a turn without calls is an action.

        `in_thought`: the turn begins inside a thought. Nothing in a thought is carried out.
        """
        answer = answer_of(text, in_thought=in_thought)
        if self.parser is None or (in_thought and not answer):
            return await self._step(text, answer)
        with self._timer.component("tools"):
            parsed = self.parser.parse(text)
            unread = None
            if not parsed.calls:
                unread = other_format(text, self.parser, self.definitions)
        if parsed.is_empty:
            outcome = await self._step(text, answer)
            outcome.other_format = unread
            return outcome
        outcome = Outcome(malformed=parsed.malformed, other_format=unread)
        if self._session is not None:
            with self._timer.component("environment"):
                timeout = self._timer.within(self._limits.step_timeout)
                outcome.state = await self._session.describe("get_state_description", timeout)
        answers: list[tuple[str, str]] = []
        for call in parsed.calls:
            answers.append((call.name, await self._call(call, outcome)))
            if outcome.status is not None:
                break
        if parsed.malformed is not None and outcome.status is None:
            answers.append(("", f"A call could not be read: {parsed.malformed}"))
            outcome.info.setdefault("invalid_action", True)
        outcome.observation = "\n\n".join(text for _, text in answers)
        if self._messages is not None:
            outcome.messages = self._messages.tool_results(answers)
        if outcome.status is None and self._session is not None:
            with self._timer.component("environment"):
                if self._session.environment is not None and self._session.environment.done:
                    outcome.status, outcome.done = EpisodeStatus.DONE, True
        return outcome

    async def _step(self, text: str, answer: str) -> Outcome:
        if self._session is None:  # without an environment the turn is the final answer
            return Outcome(status=EpisodeStatus.DONE, done=True)
        environment = self._session.environment
        with self._timer.component("environment"):
            action = text if environment is not None and environment.sees_thoughts else answer
            timeout = self._timer.within(self._limits.step_timeout)
            state, step = await self._session.step(action, timeout)
            message = {"role": "user", "content": step.observation}
            outcome = Outcome(step.observation, [message], state)
            outcome.add_step(step)
        return outcome

    async def _call(self, call: ToolCall, outcome: Outcome) -> str:
        """Executes one call and returns the text for the model."""
        outcome.calls.append(call)
        most = self._limits.max_tool_calls
        if most is not None and self._num_calls >= most:
            call.success, call.result = False, _OVER_LIMIT
            self._refused_in = self._refused_in or outcome
            if self._refused_in is not outcome:  # the model was told, and calls again
                outcome.status = EpisodeStatus.TRUNCATED_BY_TOOL_CALLS
            return _OVER_LIMIT
        self._num_calls += 1
        with self._timer.component("tools"):
            assert self._tools is not None
            timeout = self._timer.within(self._limits.tool_timeout)
            try:
                async with asyncio.timeout(timeout) as limit:
                    result = await self._tools.execute_async(call, self.context)
            except TimeoutError:
                if not limit.expired():
                    raise
            if limit.expired():  # asked here: a tool can swallow the cancellation and still return
                raise DeadlineExceeded(
                    f"tool {call.name} took longer than {timeout:g} s. Make it faster, or raise "
                    "limits.tool_timeout."
                )
        outcome.results.append(result)
        call.success, call.result = result.success, result.value
        if result.failure is ToolFailure.ENVIRONMENT:
            with self._timer.component("environment"):
                raise EnvironmentFault(result.text)
        if result.step is not None:
            with self._timer.component("environment"):
                outcome.add_step(result.step)
        return valid_text(result.text)

    async def close(self, timeout: float | None) -> None:
        if self.context is not None:
            await self.context.aclose(10.0 if timeout is None else timeout)
