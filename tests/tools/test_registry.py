"""Registering tools, calling them, and what the model is told when a call goes wrong."""

import asyncio
import copy
import pickle
from typing import Any

import pytest

from turnwise.errors import ToolError
from turnwise.tools import Tool, ToolRegistry, tool


def add(a: int, b: float = 1.0) -> float:
    """Add two numbers."""
    return a + b


async def slow_add(a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


class MyTool(Tool):
    def execute(self, param: str) -> str:
        return param.upper()


class Counter:
    def __init__(self) -> None:
        self.total = 0

    @tool
    def increase(self, by: int = 1) -> int:
        """Count on."""
        self.total += by
        return self.total

    @tool(name="zero")
    def reset_count(self) -> None:
        self.total = 0

    @staticmethod
    @tool
    def double(x: int) -> int:
        return 2 * x

    @tool
    @classmethod
    def kind(cls) -> str:
        return cls.__name__

    def not_a_tool(self) -> None: ...

    @property
    def never_read(self) -> None:
        raise AssertionError("looking for tools must not run properties")


class StepCounter(Counter):
    def increase(self, by: int = 1) -> int:
        return super().increase(10 * by)


def test_register_and_ask():
    registry = ToolRegistry([MyTool(), add])
    assert registry.names == ["my_tool", "add"]
    assert [definition.name for definition in registry.definitions] == registry.names
    assert "add" in registry
    assert len(registry) == 2
    assert registry.execute_tool("my_tool", param="value") == (True, "VALUE")
    with pytest.raises(ToolError, match="already a tool 'add'"):
        registry.register(add)


def test_registering_what_is_no_tool_says_the_cure():
    with pytest.raises(ToolError, match=r"MyTool\(\)"):
        ToolRegistry([MyTool])
    with pytest.raises(ToolError, match=r"\(int\)"):
        ToolRegistry([3])
    for thing in (print, 3, "x"):
        with pytest.raises(ToolError, match="expected a function of yours"):
            tool(thing)


def test_async_tools_work_from_both_sides():
    registry = ToolRegistry([slow_add, add])

    async def both_inside_a_loop() -> list[tuple[bool, Any]]:
        return [
            registry.execute_tool("slow_add", a=1, b=2),
            await registry.execute_tool_async("slow_add", a=1, b=2),
            await registry.execute_tool_async("add", a=1, b=2),
        ]

    assert registry.execute_tool("slow_add", a=1, b="2") == (True, 3)
    assert asyncio.run(both_inside_a_loop()) == [(True, 3)] * 3


def test_marked_methods_are_collected_bound():
    counter = Counter()
    registry = ToolRegistry().bind(counter)
    assert registry.names == ["increase", "zero", "double", "kind"]
    assert registry.definitions[0].signature == "increase(by: integer = 1)"
    assert registry.execute_tool("increase", by="5") == (True, 5)
    assert counter.total == 5
    assert counter.increase() == 6
    assert registry.execute_tool("double", x=4) == (True, 8)
    assert registry.execute_tool("kind") == (True, "Counter")
    assert registry.execute_tool("zero") == (True, None)
    assert counter.total == 0


def test_an_overridden_method_stays_a_tool():
    registry = ToolRegistry().bind(StepCounter())
    assert registry.execute_tool("increase", by=2) == (True, 20)
    assert registry.definitions[0].description == "Count on."


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copied_owner_has_tools_of_its_own(duplicate):
    owner = Counter()
    owner.tools = ToolRegistry().bind(owner)
    twin = duplicate(owner)
    assert twin.tools.execute_tool("increase", by=3) == (True, 3)
    assert (owner.total, twin.total) == (0, 3)
