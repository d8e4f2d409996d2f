"""`ToolDefinition`: what a model is told about a tool."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from turnwise.errors import ToolError
from turnwise.tools.json_schema import describe_default, describe_type, example_of

_NAME = re.compile(r"[A-Za-z0-9_./-]{1,64}")


@dataclass(frozen=True)
class ToolDefinition:
    """What a model is told about a tool.

    >>> schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    >>> ToolDefinition("weather", "Tell the weather.", schema).signature
    'weather(city: string = ...)'
    """

    name: str
    """What the model writes to call it."""
    description: str = ""
    """What it does, in a sentence or two."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """JSON schema of its arguments, an object; empty: it takes none."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ToolError(
                f"{self.name!r} cannot be the name of a tool. Use up to 64 letters, digits and "
                "_ . / -, for example with @tool(name='my_tool')."
            )
        if not self.parameters:
            object.__setattr__(self, "parameters", {"type": "object", "properties": {}})
        if self.parameters.get("type") != "object":
            raise ToolError(
                f"the parameters of tool {self.name!r} must be a JSON schema of an object, such "
                "as {'type': 'object', 'properties': {'city': {'type': 'string'}}}, "
                f"got {str(self.parameters)[:80]}"
            )

    def to_openai(self) -> dict[str, Any]:
        """The form that OpenAI-style APIs and chat templates take."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": self.parameters,
            },
        }

    @property
    def signature(self) -> str:
        """How it is called, in one line."""
        required = self.parameters.get("required", ())
        arguments = [
            f"{name}: {describe_type(schema)}"
            f"{'' if name in required else f' = {describe_default(schema)}'}"
            for name, schema in self.parameters.get("properties", {}).items()
        ]
        return f"{self.name}({', '.join(arguments)})"

    @property
    def usage(self) -> str:
        """How to call it right, for a model that did not."""
        example = json.dumps(example_of(self.parameters), ensure_ascii=False)
        return f"Call it as {self.signature}, for example with {example}."
