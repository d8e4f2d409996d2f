"""The data of tools: the definition that a model reads, its call, and the result of the call."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from turnwise.errors import ToolError
from turnwise.tools.json_schema import describe_default, describe_type, example_of
from turnwise.types import StepResult

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


@dataclass
class ToolCall:
    """One call of a tool.

    >>> ToolCall("weather", {"city": "Oslo"})
    ToolCall(name='weather', arguments={'city': 'Oslo'}, result=None, success=None)
    """

    name: str
    """The tool, as the model wrote it; it may not exist."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """As the model wrote them, not yet checked."""
    result: Any = None
    """What the tool returned, or the message that says why it did not. None: not called yet."""
    success: bool | None = None
    """Whether it worked. None: not called yet."""


class ToolFailure(StrEnum):
    """Why a call did not work. All of them are told to the model."""

    UNKNOWN_TOOL = "unknown_tool"
    BAD_ARGUMENTS = "bad_arguments"
    REFUSED = "refused"
    """The tool itself said no: it raised a `ToolError`."""
    RAISED = "raised"
    """The tool broke: any other exception, or an exit."""
    TIMED_OUT = "timed_out"
    BAD_RESULT = "bad_result"
    """It returned what is neither text nor JSON."""
    ENVIRONMENT = "environment"
    """The environment broke while a tool stepped in it; the episode cannot go on."""


@dataclass(frozen=True)
class ToolResult:
    """What came of one call.

    >>> ToolResult("add", success=True, text="3", value=3).done
    False
    """

    name: str
    """The tool, as the model wrote it."""
    success: bool
    """Whether it worked."""
    text: str
    """What the model is told: the answer, cut to the tool's limit, or what went wrong."""
    value: Any = None
    """What the tool returned; the text, where there is nothing else or it had to be cut."""
    seconds: float = 0.0
    """How long it took."""
    failure: ToolFailure | None = None
    """Why it did not work."""
    was_cut: bool = False
    """Whether the answer was longer than the tool's limit; the text says so too."""
    step: StepResult | None = None
    """What the environment gave, if the call was a step in it."""

    @property
    def reward(self) -> float:
        """What the call earned in the environment."""
        return self.step.reward if self.step is not None else 0.0

    @property
    def done(self) -> bool:
        """Whether the call ended the episode."""
        return self.step is not None and self.step.done
