"""One conversation: messages for people and parsers, and the token stream for the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.chat.format import ChatFormat, Message
from turnwise.chat.stream import TokenStream


class Conversation:
    """The agent's side of an episode: rendered once at the start, extended ever after.

    `stream.ids` is what the engine is asked to continue; `answer` takes what it sampled, `add`
    what the world said to that.
    """

    def __init__(
        self,
        chat_format: ChatFormat,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        self.format = chat_format
        self.messages: list[Message] = list(messages)
        self.stream = TokenStream()
        self.stream.add_context(chat_format.prompt_ids(messages, tools))

    def answer(self, ids: Sequence[int], log_probs: Sequence[float]) -> str:
        """Take a turn of the agent as it was sampled; its text is for reading only."""
        self.stream.add_turn(ids, log_probs)
        text = self.format.decode(ids)
        self.messages.append({"role": "assistant", "content": text})
        return text

    def add(self, messages: Sequence[Message]) -> None:
        """Observations or tool results, after the agent's turn; its next turn can follow."""
        start, end = self.stream.turns[-1]
        self.stream.add_context(self.format.increment_ids(messages, self.stream.ids[start:end]))
        self.messages += messages

    def difference(self) -> str | None:
        """What the template would write otherwise, were it to render all this at once."""
        return self.format.difference(self.messages, self.stream.ids)
