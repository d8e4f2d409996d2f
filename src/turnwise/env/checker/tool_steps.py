"""Carries out turns in environments that are checked: tool calls, or steps."""

from __future__ import annotations

from dataclasses import dataclass

from turnwise.env.base import BaseEnvironment
from turnwise.env.driver import step_environment
from turnwise.errors import EnvironmentFault
from turnwise.tools.base import marked_tools
from turnwise.tools.context import ToolContext
from turnwise.tools.parsers import ActionParser, get_parser, other_format
from turnwise.tools.registry import ToolRegistry
from turnwise.tools.types import ToolFailure, ToolResult
from turnwise.types import StepResult

_WRONG_CALL = (ToolFailure.UNKNOWN_TOOL, ToolFailure.BAD_ARGUMENTS)


@dataclass(frozen=True)
class _Open:
    """The tools of one environment in one episode."""

    environment: BaseEnvironment
    registry: ToolRegistry
    parser: ActionParser
    context: ToolContext


class ToolSteps:
    """Acts in environments as an episode does: calls are executed, other texts are a step.

    `tools` are added to the environment's own. A call that cannot be read, or that names no tool,
    is an invalid action.
    """

    def __init__(self, tools: ToolRegistry | None, parser: ActionParser | str) -> None:
        self._tools = tools
        self._parser = parser
        self._open: dict[int, _Open] = {}
        self.called: list[str] = []
        """The tools that the last turn called."""
        self.other_format: str | None = None
        """The parser that reads a call in the last turn, where the one in use reads none."""

    async def begin(self, env: BaseEnvironment) -> None:
        """Closes the tools of the environment's earlier episode."""
        before = self._open.pop(id(env), None)
        if before is not None:
            await before.context.aclose()

    async def step(self, env: BaseEnvironment, text: str) -> StepResult:
        """Carries out a turn."""
        self.called, self.other_format = [], None
        found = self._open.get(id(env)) or self._opened(env)
        if found is None:
            return await step_environment(env, text)
        parsed = found.parser.parse(text)
        if parsed.is_empty:
            self.other_format = other_format(text, found.parser, found.registry.definitions)
            return await step_environment(env, text)
        done = StepResult("", 0.0, terminated=False, truncated=False, info={})
        answers = []
        for call in parsed.calls:
            self.called.append(call.name)
            result = await found.registry.execute_async(call, found.context)
            answers.append(result.text)
            _take(done, result)
            if done.done:
                break
        if parsed.malformed is not None:
            answers.append(f"A call could not be read: {parsed.malformed}")
            done.info = {**done.info, "invalid_action": True}
        done.observation = "\n\n".join(answers)
        done.terminated = done.terminated or env.done
        return done

    async def close(self) -> None:
        """Closes all tools."""
        while self._open:
            await self._open.popitem()[1].context.aclose()

    def _opened(self, env: BaseEnvironment) -> _Open | None:
        if self._tools is None and not marked_tools(env):
            return None
        registry = (ToolRegistry() if self._tools is None else self._tools).bind(env)
        parser = self._parser
        if isinstance(parser, str):
            parser = get_parser(parser, definitions=registry.definitions)
        found = _Open(env, registry, parser, registry.open_context(env))
        self._open[id(env)] = found
        return found


def _take(done: StepResult, result: ToolResult) -> None:
    if result.failure is ToolFailure.ENVIRONMENT:
        raise EnvironmentFault(result.text)
    if result.failure in _WRONG_CALL:
        done.info = {**done.info, "invalid_action": True}
    if result.step is not None:
        done.reward += result.step.reward
        done.info = {**done.info, **result.step.info}
        done.terminated, done.truncated = result.step.terminated, result.step.truncated
