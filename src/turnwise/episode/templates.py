"""OpenAI's messages as a chat template can write them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.chat import ChatFormat, Message
from turnwise.episode.messages import MessageBuilder, describe_tools
from turnwise.errors import ToolError
from turnwise.tools import ActionParser, ToolCall, ToolDefinition


class TemplateWriter:
    """Writes an agent's messages with a chat template, and in words what it has no place for.

    It has the two methods of `ChatFormat` that a `ConversationTree` needs.
    """

    def __init__(self, builder: MessageBuilder, parser: ActionParser) -> None:
        self._builder = builder
        self._chat: ChatFormat = builder.chat
        self._parser = parser

    def prompt_ids(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> list[int]:
        """The tokens of a conversation from its beginning to where the policy's turn begins."""
        written = self._write(messages, messages)
        if tools and not self._builder.supports_tools:
            text = describe_tools([definition_of(tool) for tool in tools], self._parser)
            written, tools = _with_system(written, text), None
        if not self._builder.supports_system:
            written = _without_system(written)
        return self._chat.prompt_ids(written, tools)

    def increment_ids(
        self,
        messages: Sequence[Message],
        turn_ids: Sequence[int],
        history: Sequence[Message] = (),
    ) -> list[int]:
        """The tokens between a sampled turn and the next one."""
        written = self._write(messages, [*history, *messages])
        return self._chat.increment_ids(written, turn_ids, history)

    def _write(self, messages: Sequence[Message], known: Sequence[Message]) -> list[Message]:
        names = {
            call.get("id"): (call.get("function") or {}).get("name")
            for message in known
            for call in message.get("tool_calls") or ()
        }
        written: list[Message] = []
        results: list[tuple[str, str]] = []
        for message in messages:
            if message.get("role") == "tool":
                name = message.get("name") or names.get(message.get("tool_call_id")) or ""
                results.append((name, str(message.get("content") or "")))
                continue
            if results:
                written += self._builder.tool_results(results)
                results = []
            written.append(self._assistant(message) if message.get("tool_calls") else message)
        if results:
            written += self._builder.tool_results(results)
        return written

    def _assistant(self, message: Message) -> Message:
        """A message with calls that were not sampled here, or that the agent has changed."""
        calls = [_readable_call(call) for call in message["tool_calls"]]
        if self._builder.supports_tools:
            return {**message, "content": message.get("content") or "", "tool_calls": calls}
        texts = [
            self._parser.render(ToolCall(call["function"]["name"], call["function"]["arguments"]))
            for call in calls
        ]
        return {
            "role": "assistant",
            "content": "\n".join(filter(None, [message.get("content"), *texts])),
        }


def definition_of(tool: Mapping[str, Any]) -> ToolDefinition:
    """A tool of OpenAI's form; raises ToolError if it is not one."""
    function = tool.get("function")
    if tool.get("type", "function") != "function" or not isinstance(function, Mapping):
        raise ToolError(f"expected a tool of type function, got {str(tool)[:80]}")
    name, parameters = function.get("name"), function.get("parameters") or {}
    if not isinstance(name, str) or not name or not isinstance(parameters, Mapping):
        raise ToolError(
            f"expected a function with a name and an object as parameters, got {str(tool)[:80]}"
        )
    return ToolDefinition(name, str(function.get("description") or ""), dict(parameters))


def _readable_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """A call with its arguments as an object, as most templates take them."""
    function = dict(call.get("function") or {})
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError):
            arguments = {"arguments": arguments}
    function["arguments"] = arguments if isinstance(arguments, dict) else {"arguments": arguments}
    return {"id": call.get("id"), "type": "function", "function": function}


def _with_system(messages: Sequence[Message], text: str) -> list[Message]:
    if messages and messages[0].get("role") == "system":
        content = "\n\n".join(filter(None, [messages[0].get("content"), text]))
        return [{"role": "system", "content": content}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _without_system(messages: Sequence[Message]) -> list[Message]:
    """The system's text before the first message of the user."""
    system = "\n\n".join(str(m.get("content") or "") for m in messages if m["role"] == "system")
    rest = [message for message in messages if message["role"] != "system"]
    if not system:
        return rest
    if rest and rest[0]["role"] == "user":
        return [
            {"role": "user", "content": f"{system}\n\n{rest[0].get('content') or ''}"},
            *rest[1:],
        ]
    return [{"role": "user", "content": system}, *rest]
