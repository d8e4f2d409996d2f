"""The data of tools: the definition that a model reads, its call, and the result of the call."""

import json
import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from turnwise.errors import ToolError
from turnwise.tools.schema import describe_type
from turnwise.types import StepResult

_NAME = re.compile(r"[A-Za-z0-9_./-]{1,64}")


@dataclass(frozen=True)
class ToolDefinition:
    """The description of a tool for a model.

    >>> schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    >>> ToolDefinition("weather", "Tell the weather.", schema).signature
    'weather(city: string = ...)'
    """

    name: str
    """The name in calls."""
    description: str = ""
    """What the tool does, in a sentence or two."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """JSON schema of the arguments, an object; empty if there are none."""

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
        """Returns the form that OpenAI-style APIs and chat templates take."""
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
        """The name and the arguments with their types, in one line."""
        required = self.parameters.get("required", ())
        arguments = []
        for name, schema in self.parameters.get("properties", {}).items():
            default = ""
            if name not in required:
                has_default = isinstance(schema, dict) and "default" in schema
                shown = json.dumps(schema["default"], ensure_ascii=False) if has_default else "..."
                default = f" = {shown}"
            arguments.append(f"{name}: {describe_type(schema)}{default}")
        return f"{self.name}({', '.join(arguments)})"


@dataclass
class ToolCall:
    """One call of a tool.

    >>> ToolCall("weather", {"city": "Oslo"})
    ToolCall(name='weather', arguments={'city': 'Oslo'}, result=None, success=None)
    """

    name: str
    """The tool's name as the model wrote it; it may not exist."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """As the model wrote them, not validated."""
    result: Any = None
    """The tool's value, or the message of a failure. None before the call."""
    success: bool | None = None
    """None before the call."""


class ToolFailure(StrEnum):
    """Why a call failed. The model gets a message for each."""

    UNKNOWN_TOOL = "unknown_tool"
    BAD_ARGUMENTS = "bad_arguments"
    REFUSED = "refused"
    """The tool raised a `ToolError`."""
    RAISED = "raised"
    """The tool raised another exception, or called `sys.exit`."""
    TIMED_OUT = "timed_out"
    BAD_RESULT = "bad_result"
    """The tool returned a value that is neither text nor JSON."""
    ENVIRONMENT = "environment"
    """The environment failed in a step of a tool; the episode cannot continue."""


@dataclass(frozen=True)
class ToolResult:
    """The result of one call.

    >>> ToolResult("add", success=True, text="3", value=3).done
    False
    """

    name: str
    """The tool's name as the model wrote it."""
    success: bool
    text: str
    """The text for the model: the value, cut to the tool's limit, or the failure."""
    value: Any = None
    """The tool's value; the text if it failed or was cut."""
    seconds: float = 0.0
    failure: ToolFailure | None = None
    was_cut: bool = False
    """Whether the text is longer than the tool's limit; a note in it says so."""
    step: StepResult | None = None
    """The result of the step, if the call was a step in the environment."""

    @property
    def reward(self) -> float:
        """The reward of the step."""
        return self.step.reward if self.step is not None else 0.0

    @property
    def done(self) -> bool:
        """Whether the step ended the episode."""
        return self.step is not None and self.step.done
