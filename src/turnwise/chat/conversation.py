"""One conversation: messages for people and parsers, and the token stream for the model."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.chat.format import ChatFormat
from turnwise.chat.rendering import Message
from turnwise.chat.stream import TokenStream

_LOG = logging.getLogger("turnwise")


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
        self._tools = tools

    def answer(self, ids: Sequence[int], log_probs: Sequence[float]) -> str:
        """Take a turn of the agent as it was sampled; its text is for reading only."""
        self.stream.add_turn(ids, log_probs)
        text = self.format.decode(ids)
        self.messages.append({"role": "assistant", "content": text})
        return text

    def add(self, messages: Sequence[Message]) -> None:
        """Observations or tool results, after the agent's turn; its next turn can follow."""
        start, end = self.stream.turns[-1]
        turn = self.stream.ids[start:end]
        self.stream.add_context(self.format.increment_ids(messages, turn, self.messages))
        self.messages += messages

    def tell_difference(self) -> None:
        """Log where the template would write this conversation otherwise; once for a format.

        Only a format's first conversations are compared: what a template does, it does early.
        """
        if self.format.num_to_compare == 0 or len(self.stream.turns) < 2:
            return
        if self._has_unspoken_tokens():
            return
        self.format.num_to_compare -= 1
        if (difference := self.difference()) is not None:
            self.format.num_to_compare = 0
            _LOG.warning(
                "The chat template is not append-only: %s. Training keeps the tokens as they were "
                "sampled; a server that renders the whole conversation again will see the other.",
                difference,
            )

    def _has_unspoken_tokens(self) -> bool:
        """Whether special tokens stand within the agent's turns, as untrained models sample them.

        The text of such a turn leaves them out, so a rendering differs whatever the template does.
        Those that a parser asked for are in the text.
        """
        control, ends = self.format.control, self.format.stop_ids
        turns = self.stream.turns
        answers = [message for message in self.messages if message["role"] == "assistant"]
        for (start, end), answer in zip(turns, answers[-len(turns) :], strict=True):
            spoken = self.stream.ids[start : end - (self.stream.ids[end - 1] in ends)]
            unspoken = control.special.intersection(spoken)
            if any(control.names[i] not in answer["content"] for i in unspoken):
                return True
        return False

    def difference(self) -> str | None:
        """What the template would write otherwise, were it to render all this at once.

        A turn may end with any token that ends one; that is no difference.
        """
        ids = self.format.with_template_ends(self.stream.ids, self.stream.turns)
        return self.format.difference(self.messages, ids, self._tools)
