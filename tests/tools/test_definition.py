"""Schemas from signatures and docstrings, and tools as classes, functions and methods."""

import asyncio
import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from turnwise.errors import ToolError
from turnwise.tools import FunctionTool, Tool, ToolDefinition, ToolRegistry, tool


@dataclass
class Point:
    x: int
    y: int = 0


@tool
def paint(
    colour: Literal["red", "blue"],
    at: Point,
    size: Annotated[int, Field(ge=1)] = 3,
    tags: list[str] | None = None,
) -> str:
    """Paint a spot
    on the wall.

    Args:
        colour: The colour: red or blue.
        at (Point): Where,
            in steps.

    It dries in an hour.

    Returns:
        size: this is not about the argument.
    """
    return f"{colour} {at} {size} {tags}"


def test_schema_comes_from_type_hints_and_docstring():
    definition = FunctionTool(paint).definition
    properties = definition.parameters["properties"]
    assert definition.name == "paint"
    assert definition.description == "Paint a spot on the wall. It dries in an hour."
    assert properties["colour"]["enum"] == ["red", "blue"]
    assert properties["colour"]["description"] == "The colour: red or blue."
    assert properties["at"]["description"] == "Where, in steps."
    assert properties["size"] == {"type": "integer", "minimum": 1, "default": 3}
    assert definition.parameters["required"] == ["colour", "at"]
    assert "title" not in json.dumps(properties)
    assert definition.signature == (
        'paint(colour: "red"|"blue", at: object, size: integer = 3, '
        "tags: array of string|null = null)"
    )


def test_arguments_need_no_indentation():
    def add(a: int, b: int) -> int:
        """Add.

        Args:
        a: first
        b (int): second

        Twice."""
        return a + b

    definition = FunctionTool(add).definition
    arguments = definition.parameters["properties"].values()
    assert definition.description == "Add. Twice."
    assert [argument["description"] for argument in arguments] == ["first", "second"]


def test_a_tool_may_be_described_in_words_of_its_own():
    @tool(name="other", description="Said otherwise.")
    def function() -> None:
        """Not this."""

    class HTTPGetTool(Tool):
        """Fetch a page."""

        def execute(self, url: str, retries: int = 2) -> str:
            return url * retries

    class Named(Tool):
        name = "given"
        description = "Given too."
        parameters = {"type": "object", "properties": {"a": {"type": "integer"}}}  # noqa: RUF012

        def execute(self, **params: Any) -> Any:
            return params

    class Whole(Tool):
        definition = ToolDefinition("whole", "All at once.")

        def execute(self, **params: Any) -> Any:
            return params

    definition = FunctionTool(function).definition
    assert (definition.name, definition.description) == ("other", "Said otherwise.")
    definition = HTTPGetTool().definition
    assert definition.signature == "http_get_tool(url: string, retries: integer = 2)"
    assert definition.description == "Fetch a page."
    assert Named().definition == ToolDefinition("given", "Given too.", Named.parameters)
    assert Whole().definition.name == "whole"
    assert Whole().check({"whatever": [1]}) == {"whatever": [1]}


@pytest.mark.parametrize(
    "name",
    [
        *("copy", "schema", "json", "model_config", "_private", "self_"),  # pydantic's
        *("name", "timeout", "function"),  # our own
    ],
)
def test_arguments_may_have_names_that_are_used_elsewhere(name):
    scope: dict[str, Any] = {}
    exec(f"def double({name}: int): return 2 * {name}", scope)
    registry = ToolRegistry([scope["double"]])
    assert registry.execute_tool("double", **{name: "4"}) == (True, 8)
    assert asyncio.run(registry.execute_tool_async("double", **{name: 4})) == (True, 8)
    assert not registry.execute_tool("double", self="x")[0]


def test_mistakes_in_a_tool_say_the_cure():
    def unknown_type(a: "Nowhere") -> None: ...  # noqa: F821

    class Strange: ...

    def no_schema(a: Strange) -> None: ...

    class Bad(Tool):
        parameters = {"city": {"type": "string"}}  # noqa: RUF012

        def execute(self, **params: Any) -> None: ...

    def by_position(a: int, /) -> None: ...

    with pytest.raises(ToolError, match="Remove the /"):
        _ = FunctionTool(by_position).definition
    with pytest.raises(ToolError, match=r"Nowhere.*top of its module"):
        _ = FunctionTool(unknown_type).definition
    with pytest.raises(ToolError, match="Use str, int"):
        _ = FunctionTool(no_schema).definition
    with pytest.raises(ToolError, match=r"@tool\(name="):
        _ = FunctionTool(lambda: None).definition
    with pytest.raises(ToolError, match="JSON schema of an object"):
        _ = Bad().definition
    with pytest.raises(ToolError, match="without its object"):
        _ = FunctionTool(Tool.check).definition


def test_import_is_light():
    code = (
        "import sys, turnwise.tools\n"
        "from turnwise.tools import tool\n"
        "@tool\ndef f(a: int): ...\n"
        "assert not {'torch', 'pydantic'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
