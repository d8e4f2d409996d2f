"""The messages of an episode: the initial prompt and tool results, as the template takes them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from turnwise.chat import ChatFormat, Message
from turnwise.errors import ConfigError
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
        try:
            rendered = self.chat.render([_PROBE_PROMPT], tools=[_PROBE_TOOL.to_openai()])
        except ConfigError:
            return False
        return _PROBE_TOOL.name in rendered

    @cached_property
    def supports_system(self) -> bool:
        """Whether the template renders a system message."""
        system = {"role": "system", "content": _PROBE_TEXT}
        try:
            return _PROBE_TEXT in self.chat.render([system, _PROBE_PROMPT])
        except ConfigError:
            return False

    @cached_property
    def supports_tool_results(self) -> bool:
        """Whether the template renders messages of the role `tool`, also several in a row."""
        result = tool_message("f", _PROBE_TEXT)
        try:
            text = self.chat.render_after_answer([result, result])
        except ConfigError:
            return False
        return text.count(_PROBE_TEXT) == 2

    def initial(
        self,
        system: str,
        first: str,
        definitions: Sequence[ToolDefinition] = (),
        parser: ActionParser | None = None,
    ) -> list[Message]:
        """Returns the initial prompt; it describes the tools in text if the template does not."""
        if definitions and not self.supports_tools and parser is not None:
            system = "\n\n".join(filter(None, [system, describe_tools(definitions, parser)]))
        if not system:
            return [{"role": "user", "content": first}]
        if not self.supports_system:
            return [{"role": "user", "content": f"{system}\n\n{first}"}]
        return [{"role": "system", "content": system}, {"role": "user", "content": first}]

    def tool_results(self, results: Sequence[tuple[str, str]]) -> list[Message]:
        """Returns tool results, as (tool, text), in tool messages or else in one user message."""
        if self.supports_tool_results:
            return [tool_message(name, text) for name, text in results]
        # One message: many templates require that user and assistant alternate.
        texts = [f"{name}: {text}" if name else text for name, text in results]
        return [{"role": "user", "content": "\n\n".join(texts)}]


def tool_message(name: str, text: str) -> Message:
    return {"role": "tool", "name": name or "tool", "content": text}


def describe_tools(definitions: Sequence[ToolDefinition], parser: ActionParser) -> str:
    """Returns the tools and the format of a call as text, for a model whose template has none."""
    tools = [f"- {tool.signature}: {tool.description}".rstrip(": ") for tool in definitions]
    example = parser.render(ToolCall("name", {"key": "value"}))
    return "\n".join(["You can call these tools:", *tools, "Write a call as:", example])
