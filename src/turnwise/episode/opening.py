"""How a conversation opens: the system's words, the tools, and the first thing the agent reads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from turnwise.chat import ChatFormat, Message
from turnwise.errors import ConfigError
from turnwise.tools import ActionParser, ToolCall, ToolDefinition

_PROBE = ToolDefinition("turnwise_probe", "Nothing.")
_ASKED: Message = {"role": "user", "content": "q"}
_ANSWER = "turnwiseResult5c1e"


class Abilities:
    """What a chat template can write; found out by rendering, since templates drop silently."""

    def __init__(self, chat: ChatFormat) -> None:
        self.chat = chat

    @cached_property
    def takes_tools(self) -> bool:
        """Whether it tells the model about tools."""
        try:
            return _PROBE.name in self.chat.render([_ASKED], tools=[_PROBE.to_openai()])
        except ConfigError:
            return False

    @cached_property
    def takes_system(self) -> bool:
        """Whether there is a system message."""
        try:
            return _ANSWER in self.chat.render([{"role": "system", "content": _ANSWER}, _ASKED])
        except ConfigError:
            return False

    @cached_property
    def takes_tool_results(self) -> bool:
        """Whether there are messages of the role `tool`, several in a row too."""
        result = tool_message("f", _ANSWER)
        try:
            text = self.chat.render_after_answer([result, result])
        except ConfigError:
            return False
        return text.count(_ANSWER) == 2

    def open_with(
        self,
        system: str,
        first: str,
        definitions: Sequence[ToolDefinition] = (),
        parser: ActionParser | None = None,
    ) -> list[Message]:
        """The messages that open a conversation; tools in words where the template has none."""
        if definitions and not self.takes_tools and parser is not None:
            system = "\n\n".join(filter(None, [system, in_words(definitions, parser)]))
        if not system:
            return [{"role": "user", "content": first}]
        if not self.takes_system:
            return [{"role": "user", "content": f"{system}\n\n{first}"}]
        return [{"role": "system", "content": system}, {"role": "user", "content": first}]

    def answers(self, named: Sequence[tuple[str, str]]) -> list[Message]:
        """What tools answered, as (name, text): messages of their own, or one of the user's."""
        if self.takes_tool_results:
            return [tool_message(name, text) for name, text in named]
        # One message: many templates want user and assistant to take turns.
        told = [f"{name}: {text}" if name else text for name, text in named]
        return [{"role": "user", "content": "\n\n".join(told)}]


def tool_message(name: str, text: str) -> Message:
    """The answer of a tool."""
    return {"role": "tool", "name": name or "tool", "content": text}


def in_words(definitions: Sequence[ToolDefinition], parser: ActionParser) -> str:
    """Tools and how to call them, for a model whose template does not say."""
    tools = [f"- {tool.signature}: {tool.description}".rstrip(": ") for tool in definitions]
    example = parser.render(ToolCall("name", {"key": "value"}))
    return "\n".join(["You can call these tools:", *tools, "Write a call as:", example])
