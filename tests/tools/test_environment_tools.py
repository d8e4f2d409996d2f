"""Acting in an environment by tool calls: its step, and its own methods."""

import asyncio
from typing import Any

import pytest

from turnwise import EnvironmentStepTool
from turnwise.env import BaseEnvironment
from turnwise.tools import ToolCall, ToolContext, ToolFailure, ToolRegistry, ToolResult, tool
from turnwise.types import StepResult


class Counter(BaseEnvironment):
    """Counts what it is told; over at three."""

    total = 0

    def reset(self) -> str:
        self.total = 0
        return "Count to three."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        self.total += int(action)
        return f"Now {self.total}.", float(self.total == 3), self.total >= 3, {}

    def get_state_description(self) -> str:
        return str(self.total)

    @tool
    def look(self) -> str:
        """Tell the count."""
        return self.get_state_description()

    @tool
    async def jump(self, to: int) -> StepResult:
        """Set the count."""
        await asyncio.sleep(0)
        self.total = to
        return StepResult(f"Jumped to {to}.", 0.5, terminated=to >= 3, truncated=False, info={})


class AsyncCounter(Counter):
    async def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().step(action)


def step(registry: ToolRegistry, action: Any, context: ToolContext) -> ToolResult:
    return registry.execute(ToolCall("environment_step", {"action": action}), context)


@pytest.mark.parametrize("make", [Counter, AsyncCounter])
def test_a_step_gives_the_observation_and_the_episode_sees_reward_and_end(make):
    registry = ToolRegistry([EnvironmentStepTool()])
    environment = make()
    context = registry.open_context(environment)
    first = step(registry, "1", context)
    assert (first.text, first.value, first.reward, first.done) == ("Now 1.", "Now 1.", 0.0, False)
    last = step(registry, 2, context)  # a number is coerced to text
    assert (last.text, last.reward, last.done) == ("Now 3.", 1.0, True)
    assert [taken.reward for taken in context.steps] == [0.0, 1.0]
    assert environment.step_count == 2
    after = step(registry, "1", context)
    assert after.failure is ToolFailure.REFUSED
    assert "episode is over" in after.text
    assert environment.step_count == 2


def test_it_works_on_the_loop_and_with_an_environment_of_its_own():
    registry = ToolRegistry([EnvironmentStepTool(Counter())])

    async def main() -> tuple[bool, Any]:
        return await registry.execute_tool_async("environment_step", action="2")

    assert asyncio.run(main()) == (True, "Now 2.")


def test_two_environments_have_a_tool_each_under_names_and_limits_of_their_own():
    async def wait(action):
        await asyncio.sleep(60)

    slow = AsyncCounter()
    slow.step = wait
    count = EnvironmentStepTool(Counter(), name="count", description="Count.")
    hang = EnvironmentStepTool(slow, name="hang", step_timeout=0.01)
    registry = ToolRegistry([count, hang])
    assert registry.definitions[0].description == "Count."
    assert registry.execute_tool("count", action="2") == (True, "Now 2.")
    result = registry.execute(ToolCall("hang", {"action": "1"}))
    assert result.failure is ToolFailure.ENVIRONMENT
    assert "AsyncCounter.step() took longer than 0.01 s" in result.text
    assert "raise step_timeout" in result.text


def test_an_environment_that_breaks_is_not_the_models_mistake():
    registry = ToolRegistry([EnvironmentStepTool()])
    result = step(registry, "many", registry.open_context(Counter()))
    assert result.failure is ToolFailure.ENVIRONMENT
    assert result.text.startswith("Counter.step() failed: ValueError")


def test_without_an_environment_it_says_where_one_comes_from():
    registry = ToolRegistry([EnvironmentStepTool()])
    result = step(registry, "1", registry.open_context())
    assert result.failure is ToolFailure.ENVIRONMENT
    assert "registry.open_context(environment)" in result.text


def test_an_environments_own_methods_are_tools_of_its_episode():
    shared = ToolRegistry([EnvironmentStepTool()])
    first, second = shared.bind(Counter()), shared.bind(Counter())
    assert first.names == ["environment_step", "look", "jump"]
    assert shared.names == ["environment_step"]
    assert first.execute_tool("environment_step", action="2") == (True, "Now 2.")
    assert first.execute_tool("look") == (True, "2")
    assert second.execute_tool("look") == (True, "0")
