"""The messages of an episode and of an agent, as the chat template takes them."""

import contextlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from turnwise.chat import ChatFormat, Message
from turnwise.errors import ConfigError, ToolError
from turnwise.tools import ActionParser, ToolCall, ToolDefinition

_PROBE_TOOL = ToolDefinition("turnwise_probe", "Nothing.")
_PROBE_PROMPT: Message = {"role": "user", "content": "q"}
_PROBE_TEXT = "turnwiseResult5c1e"


class MessageBuilder:
    """Builds messages that a chat template can render.

    Templates drop silently what they do not support, so each feature is found out by rendering.
    """

    def __init__(self, chat: ChatFormat) -> None:
        self.chat = chat

    @cached_property
    def supports_tools(self) -> bool:
        """Whether the template renders tool definitions."""
        return self._renders(_PROBE_TOOL.name, [_PROBE_PROMPT], [_PROBE_TOOL.to_openai()])

    @cached_property
    def supports_system(self) -> bool:
        """Whether the template renders a system message."""
        system = {"role": "system", "content": _PROBE_TEXT}
        return self._renders(_PROBE_TEXT, [system, _PROBE_PROMPT])

    def _renders(
        self, text: str, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> bool:
        try:
            return text in self.chat.render(messages, tools=tools)
        except ConfigError:
            return False

    @cached_property
    def supports_tool_results(self) -> bool:
        """Whether the template renders messages of the role `tool`, also several in a row."""
        result = {"role": "tool", "name": "f", "content": _PROBE_TEXT}
        try:
            text = self.chat.render_after_answer([result, result]).text
        except ConfigError:
            return False
        return text.count(_PROBE_TEXT) == 2

    def initial(
        self,
        messages: Sequence[Message],
        definitions: Sequence[ToolDefinition],
        parser: ActionParser | None,
        system: str = "",
    ) -> list[Message]:
        """Returns the initial prompt; what the template has no place for is written in words.

        Tools are put into the system prompt, and that before the user's text, where it must be.
        """
        messages = list(messages)
        if system:
            messages.insert(0, {"role": "system", "content": system})
        if definitions and not self.supports_tools and parser is not None:
            text = describe_tools(definitions, parser)
            if messages and messages[0].get("role") == "system":
                text = "\n\n".join(filter(None, [messages.pop(0).get("content"), text]))
            messages.insert(0, {"role": "system", "content": text})
        if self.supports_system:
            return messages
        system = "\n\n".join(str(m.get("content") or "") for m in messages if m["role"] == "system")
        rest = [message for message in messages if message["role"] != "system"]
        if system and rest and rest[0]["role"] == "user":
            system = f"{system}\n\n{rest.pop(0).get('content') or ''}"
        return [{"role": "user", "content": system}, *rest] if system else rest

    def tool_results(self, results: Sequence[tuple[str, str]]) -> list[Message]:
        """Returns tool results, as (tool, text), in tool messages or else in one user message."""
        if self.supports_tool_results:
            return [{"role": "tool", "name": n or "tool", "content": text} for n, text in results]
        # One message: many templates require that user and assistant alternate.
        texts = [f"{name}: {text}" if name else text for name, text in results]
        return [{"role": "user", "content": "\n\n".join(texts)}]


def describe_tools(definitions: Sequence[ToolDefinition], parser: ActionParser) -> str:
    """Returns the tools and the format of a call as text, for a model whose template has none."""
    tools = [f"- {tool.signature}: {tool.description}".rstrip(": ") for tool in definitions]
    example = parser.render(ToolCall("name", {"key": "value"}))
    return "\n".join(["You can call these tools:", *tools, "Write a call as:", example])


@dataclass
class TemplateWriter:
    """Writes an agent's messages with a chat template, and in words what it has no place for.

    It has the two methods of `ChatFormat` that a `ConversationTree` needs.
    """

    builder: MessageBuilder
    parser: ActionParser

    def prompt_ids(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> list[int]:
        """The tokens of a conversation from its beginning to where the policy's turn begins."""
        definitions = [tool_definition(tool) for tool in tools or ()]
        written = self.builder.initial(self._write(messages, messages), definitions, self.parser)
        return self.builder.chat.prompt_ids(written, tools if self.builder.supports_tools else None)

    def increment_ids(
        self, messages: Sequence[Message], turn_ids: Sequence[int], history: Sequence[Message] = ()
    ) -> list[int]:
        """The tokens between a sampled turn and the next one."""
        written = self._write(messages, [*history, *messages])
        return self.builder.chat.increment_ids(written, turn_ids, history)

    def _write(self, messages: Sequence[Message], known: Sequence[Message]) -> list[Message]:
        names = {
            call.get("id"): (call.get("function") or {}).get("name")
            for message in known
            for call in message.get("tool_calls") or ()
        }
        written: list[Message] = []
        for role, group in itertools.groupby(messages, lambda message: message.get("role")):
            if role == "tool":
                results = [
                    (m.get("name") or names.get(m.get("tool_call_id")) or "", m.get("content"))
                    for m in group
                ]
                written += self.builder.tool_results([(n, str(c or "")) for n, c in results])
            else:
                written += [self._assistant(m) if m.get("tool_calls") else m for m in group]
        return written

    def _assistant(self, message: Message) -> Message:
        """A message with calls that were not sampled here, or that the agent has changed."""
        functions = []
        for call in message["tool_calls"]:
            function = dict(call.get("function") or {})
            arguments = function.get("arguments")
            if isinstance(arguments, str):  # most templates take them as an object
                with contextlib.suppress(ValueError):
                    arguments = json.loads(arguments) if arguments.strip() else {}
            is_object = isinstance(arguments, dict)
            function["arguments"] = arguments if is_object else {"arguments": arguments}
            functions.append(function)
        content = message.get("content") or ""
        if self.builder.supports_tools:
            calls = [
                {"id": call.get("id"), "type": "function", "function": function}
                for call, function in zip(message["tool_calls"], functions, strict=True)
            ]
            return {**message, "content": content, "tool_calls": calls}
        texts = [self.parser.render(ToolCall(f["name"], f["arguments"])) for f in functions]
        return {"role": "assistant", "content": "\n".join(filter(None, [content, *texts]))}


def tool_definition(tool: Mapping[str, Any]) -> ToolDefinition:
    """A tool of OpenAI's form; raises ToolError if it is not one."""
    function = tool.get("function")
    given = function if isinstance(function, Mapping) else {}
    name, parameters = given.get("name"), given.get("parameters") or {}
    is_function = tool.get("type", "function") == "function"
    if not (is_function and name and isinstance(name, str) and isinstance(parameters, Mapping)):
        raise ToolError(
            f"expected a function with a name and an object as parameters, got {str(tool)[:80]}"
        )
    return ToolDefinition(name, str(given.get("description") or ""), dict(parameters))
