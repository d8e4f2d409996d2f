"""What tools share: the definition that a model reads, a call, its result, and the context."""

import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from turnwise.deadlines import call_with_deadline, run_sync
from turnwise.errors import ToolError, describe_error
from turnwise.types import StepResult

_LOG = logging.getLogger("turnwise")
_NAME = re.compile(r"[A-Za-z0-9_./-]{1,64}")
_MAX_DEPTH = 4  # definitions may contain themselves


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
            fix = "Use up to 64 letters, digits and _ . / -, as in @tool(name='my_tool')."
            raise ToolError(f"{self.name!r} cannot be the name of a tool. {fix}")
        if not self.parameters:
            object.__setattr__(self, "parameters", {"type": "object", "properties": {}})
        if self.parameters.get("type") != "object":
            raise ToolError(
                f"the parameters of tool {self.name!r} are {str(self.parameters)[:80]}, expected a "
                "JSON schema of an object: {'type': 'object', 'properties': {'city': {}}}"
            )

    def to_openai(self) -> dict[str, Any]:
        """Returns the form that OpenAI-style APIs and chat templates take."""
        return {"type": "function", "function": dict(vars(self))}

    @property
    def signature(self) -> str:
        """The name and the arguments with their types, in one line."""
        arguments = []
        for name, schema in argument_schemas(self.parameters).items():
            argument = f"{name}: {describe_type(schema)}"
            if name not in self.parameters.get("required", ()):
                has_default = "default" in schema
                shown = json.dumps(schema["default"], ensure_ascii=False) if has_default else "..."
                argument += f" = {shown}"
            arguments.append(argument)
        return f"{self.name}({', '.join(arguments)})"


def argument_schemas(parameters: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Returns the schema of each argument with its `$ref` resolved; that of `true` is empty.

    >>> at = {"$ref": "#/$defs/Point"}
    >>> argument_schemas({"properties": {"at": at}, "$defs": {"Point": {"type": "object"}}})
    {'at': {'type': 'object'}}
    """
    definitions = _mapping(parameters.get("$defs") or parameters.get("definitions"))

    def resolve(schema: Any, depth: int = 0) -> Mapping[str, Any]:
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
            return {}
        resolved = dict(schema)
        if isinstance(reference := resolved.pop("$ref", None), str):
            target = definitions.get(reference.rpartition("/")[2])
            resolved = {**resolve(target, depth + 1), **resolved}
        for name in resolved.keys() & {"anyOf", "oneOf"}:
            inner = resolved[name] if isinstance(resolved[name], list) else []
            resolved[name] = [resolve(one, depth + 1) for one in inner]
        if "items" in resolved:
            resolved["items"] = resolve(resolved["items"], depth + 1)
        return resolved

    properties = _mapping(parameters.get("properties"))
    return {name: resolve(schema) for name, schema in properties.items()}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}  # a server may send anything


def describe_type(schema: Mapping[str, Any]) -> str:
    """Returns a JSON schema without references in a word or two.

    >>> describe_type({"type": "array", "items": {"type": "string"}})
    'array of string'
    """
    if "enum" in schema:
        return "|".join(json.dumps(option, ensure_ascii=False) for option in schema["enum"])
    if "const" in schema:
        return json.dumps(schema["const"], ensure_ascii=False)
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if alternatives:
        return "|".join(describe_type(option) for option in alternatives)
    kind = schema.get("type", "any")
    if kind == "array":
        return f"array of {describe_type(schema.get('items', {}))}"
    return "|".join(kind) if isinstance(kind, list) else str(kind)


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


class ToolContext:
    """The environment of an episode, and a store for what its tools want to keep.

    A tool with an argument of this type receives the episode's context; the model does not see it.

    >>> def note(text: str, context: ToolContext) -> str:
    ...     notes = context.store.setdefault("notes", [])
    ...     notes.append(text)
    ...     return f"{len(notes)} notes"

    Objects in the store that have `close` (or `aclose`) are closed with the context, the newest
    first. The tools of an episode share the store; no other episode sees it.
    """

    def __init__(self, environment: Any = None) -> None:
        self.environment = environment
        """The episode's `BaseEnvironment`, of the user's own class; None if there is none."""
        self.store: dict[str, Any] = {}
        self.steps: list[StepResult] = []
        """The results of the steps that tools took in the environment, oldest first."""
        self.asked: Callable[[Sequence[Mapping[str, Any]], int | None], Awaitable[str]] | None = (
            None
        )
        """Answers `ask`: messages and the most tokens of the answer in; set by the episode."""
        self._closed = False

    async def ask(
        self, messages: str | Sequence[Mapping[str, Any]], *, max_tokens: int | None = None
    ) -> str:
        """Asks the model that plays the episode, as a sub-agent; returns its answer.

        The messages are a conversation of their own, which the model sees alone; a text is one
        message of the user. To continue it, pass all messages again, with the answer and what
        follows. What the model samples is trained with the episode.

        >>> async def research(question: str, context: ToolContext) -> str:
        ...     return await context.ask(f"Answer in one sentence: {question}")
        """
        if self.asked is None or self._closed:
            raise ToolError(
                "there is no model to ask: context.ask works in a tool that an episode calls, "
                "until the episode ends"
            )
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        return await self.asked(messages, max_tokens)

    def close(self) -> None:
        """Closes the objects in the store. May be called twice; errors are logged, not raised."""
        if self.store:
            run_sync(self.aclose())
        self._closed = True

    async def aclose(self, timeout: float = 10.0) -> None:
        """`close` for async code; each object in the store has `timeout` seconds."""
        self._closed = True
        while self.store:
            name, thing = self.store.popitem()
            close = getattr(thing, "aclose", None) or getattr(thing, "close", None)
            if callable(close) and not isinstance(thing, type):
                try:
                    await call_with_deadline(close, timeout=timeout, waiting_for=f"closing {name}")
                except Exception as error:  # the others must be closed too
                    why = describe_error(error)
                    _LOG.warning("closing %r of an episode's tools failed: %s", name, why)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[type[Self], tuple[Any]]:
        # A copy belongs to another episode: it keeps only (a copy of) the environment.
        return type(self), (self.environment,)
