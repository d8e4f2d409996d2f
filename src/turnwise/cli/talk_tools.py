"""Tools in a conversation: what they are called, and carrying out the calls of an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnwise.chat import ChatFormat, Message
from turnwise.episode.messages import MessageBuilder
from turnwise.tools import ActionParser, ToolCall, ToolRegistry, get_parser
from turnwise.tools.context import ToolContext

MOST_ROUNDS = 20
"""Answers in a row that may call tools; a model may call them for ever."""


@dataclass
class TalkTools:
    """The tools of one conversation after the other; a new one begins with a fresh context."""

    registry: ToolRegistry
    chat: ChatFormat
    choice: ActionParser | str = "auto"
    messages: MessageBuilder = field(init=False)
    parser: ActionParser = field(init=False)

    def __post_init__(self) -> None:
        self.messages = MessageBuilder(self.chat)
        self.parser = (
            get_parser(
                self.choice, template=self.chat.template, definitions=self.registry.definitions
            )
            if isinstance(self.choice, str)
            else self.choice
        )
        self._context: ToolContext = self.registry.open_context()

    def reset(self) -> None:
        """Forget what the tools hold of the conversation."""
        self.close()
        self._context = self.registry.open_context()

    def close(self) -> None:
        self._context.close()

    def opening(self, system: str | None, first: str) -> list[Message]:
        """The messages that begin a conversation, with the tools in words where they must be."""
        definitions = self.registry.definitions
        return self.messages.initial(system or "", first, definitions, self.parser)

    @property
    def for_template(self) -> Sequence[Mapping[str, Any]] | None:
        """The tools as the chat template takes them, if it takes any."""
        if not self.messages.supports_tools:
            return None
        return [definition.to_openai() for definition in self.registry.definitions]

    def carry_out(self, text: str, show_call: Callable[[ToolCall], None]) -> Sequence[Message]:
        """Do what an answer calls for; the results as messages, none if it calls no tool."""
        parsed = self.parser.parse(text)
        answers: list[tuple[str, str]] = []
        for call in parsed.calls:
            result = self.registry.execute(call, self._context)
            call.success, call.result = result.success, result.value
            show_call(call)
            answers.append((call.name, result.text))
        if parsed.malformed is not None:
            answers.append(("", f"A call could not be read: {parsed.malformed}"))
        return self.messages.tool_results(answers) if answers else ()
