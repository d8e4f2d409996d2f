"""Carries out an agent's turn: tool calls, a step in the environment, or an error message."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from turnwise.chat import Message
from turnwise.episode.environment_session import EnvironmentSession
from turnwise.episode.messages import MessageBuilder
from turnwise.episode.options import ParserChoice
from turnwise.episode.types import TurnRecord
from turnwise.errors import DeadlineExceeded, EnvironmentFault
from turnwise.tools import (
    ActionParser,
    ToolCall,
    ToolContext,
    ToolDefinition,
    ToolFailure,
    ToolRegistry,
    answer_of,
    get_parser,
)
from turnwise.tools.parsers import other_format
from turnwise.types import EpisodeStatus, StepResult

_OVER_LIMIT = "No tool calls are left. Answer without tools."


@dataclass
class Actions:
    """Carries out the turns of one episode."""

    session: EnvironmentSession
    messages: MessageBuilder | None
    """Builds the messages of tool results; None if there is no conversation to add to."""
    tools: ToolRegistry | None
    choice: ParserChoice
    parser: ActionParser | None = None
    definitions: Sequence[ToolDefinition] = ()
    context: ToolContext | None = None
    _num_calls: int = 0
    _refused_in: TurnRecord | None = None
    """The first turn with a call over the limit."""

    def begin(self) -> None:
        """Adds the environment's own tools; called when the environment has been reset."""
        environment = self.session.environment
        if self.tools is None:
            if environment is None or not environment.get_tools():
                return
            self.tools = ToolRegistry()
        if environment is not None:
            self.tools = self.tools.bind(environment)
        self.definitions = self.tools.definitions
        self.context = self.tools.open_context(environment)
        if isinstance(self.choice, str):
            template = None if self.messages is None else self.messages.chat.template
            self.parser = get_parser(self.choice, template=template, definitions=self.definitions)
        else:
            self.parser = self.choice

    async def act(self, turn: TurnRecord) -> tuple[Sequence[Message], EpisodeStatus | None]:
        """Carries out a turn and records in it what that gave; one without tool calls is an action.

        Nothing in a thought is carried out. Returns the messages that the agent reads next, and the
        status if the turn ended the episode.
        """
        answer = answer_of(turn.text, in_thought=turn.in_thought)
        if self.parser is None or (turn.in_thought and not answer):
            return await self._step(turn, answer)
        with self.session.timer.component("tools"):
            parsed = self.parser.parse(turn.text)
            if not parsed.calls:
                turn.other_format = other_format(turn.text, self.parser, self.definitions)
        if parsed.is_empty:
            return await self._step(turn, answer)
        turn.malformed = parsed.malformed
        turn.state = await self.session.describe("get_state_description")
        answers: list[tuple[str, str]] = []
        status: EpisodeStatus | None = None
        for call in parsed.calls:
            text, status = await self._call(call, turn)
            answers.append((call.name, text))
            if status is not None:
                break
        if parsed.malformed is not None and status is None:
            answers.append(("", f"A call could not be read: {parsed.malformed}"))
            turn.info.setdefault("invalid_action", True)
        turn.observation = "\n\n".join(text for _, text in answers)
        environment = self.session.environment
        if status is None and environment is not None:
            with self.session.timer.component("environment"):  # it may be a property
                turn.done = bool(environment.done)
            if turn.done:
                status = EpisodeStatus.DONE
        return () if self.messages is None else self.messages.tool_results(answers), status

    async def _step(
        self, turn: TurnRecord, answer: str
    ) -> tuple[Sequence[Message], EpisodeStatus | None]:
        environment = self.session.environment
        if environment is None:  # the turn is the final answer
            turn.done = True
            return (), EpisodeStatus.DONE
        with self.session.timer.component("environment"):
            action = turn.text if environment.sees_thoughts else answer
        turn.state, step = await self.session.step(action)
        turn.observation = step.observation
        return [{"role": "user", "content": step.observation}], _add_step(turn, step)

    async def _call(self, call: ToolCall, turn: TurnRecord) -> tuple[str, EpisodeStatus | None]:
        """Executes one call; returns the text for the model, and the status if it ended."""
        turn.calls = [*turn.calls, call]
        limits = self.session.limits
        if limits.max_tool_calls is not None and self._num_calls >= limits.max_tool_calls:
            call.success, call.result = False, _OVER_LIMIT
            self._refused_in = self._refused_in or turn
            was_told = self._refused_in is not turn  # and calls again
            return _OVER_LIMIT, EpisodeStatus.TRUNCATED_BY_TOOL_CALLS if was_told else None
        self._num_calls += 1
        with self.session.timer.component("tools"):
            assert self.tools is not None
            timeout = self.session.timer.within(limits.tool_timeout)
            try:
                async with asyncio.timeout(timeout):
                    result = await self.tools.execute_async(call, self.context)
            except TimeoutError:
                raise DeadlineExceeded(
                    f"tool {call.name} took longer than {timeout:g} s. Raise limits.tool_timeout."
                ) from None
        turn.tool_results = [*turn.tool_results, result]
        call.success, call.result = result.success, result.value
        with self.session.timer.component("environment"):
            if result.failure is ToolFailure.ENVIRONMENT:
                raise EnvironmentFault(result.text)
            return result.text, None if result.step is None else _add_step(turn, result.step)

    async def close(self) -> None:
        timeout = self.session.limits.close_timeout
        if self.context is not None:
            await self.context.aclose(10.0 if timeout is None else timeout)


def _add_step(turn: TurnRecord, step: StepResult) -> EpisodeStatus | None:
    """Adds a step in the environment to a turn; returns the status if it ended the episode."""
    turn.reward += step.reward
    turn.info = {**turn.info, **step.info} if turn.info else step.info
    turn.done = step.terminated
    if step.terminated:
        return EpisodeStatus.DONE
    if step.info.get("truncated"):
        return EpisodeStatus.TRUNCATED_BY_ENVIRONMENT
    return EpisodeStatus.TRUNCATED_BY_TURNS if step.truncated else None
