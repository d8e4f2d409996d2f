"""One conversation: its messages for people and parsers, its token stream for the model."""

from collections.abc import Collection, Sequence

from turnwise.chat.format import ChatFormat
from turnwise.chat.rendering import Message, Tools
from turnwise.chat.stream import TokenStream


class Conversation:
    """The agent's side of an episode: the prompt is rendered once, then only extended.

    The engine continues `stream.ids`; `answer` appends what it sampled, `add` appends observations
    and tool results.
    """

    def __init__(
        self, chat_format: ChatFormat, messages: Sequence[Message], tools: Tools = None
    ) -> None:
        self.format = chat_format
        self.messages: list[Message] = list(messages)
        self.stream = TokenStream()
        self.stream.add_context(chat_format.prompt_ids(messages, tools))
        self._tools = tools
        self.initial = list(messages)
        self._restarted: tuple[list[Message], int] = ([], 0)
        """Messages of the present branch that come before those of `messages` from this number."""

    def answer(
        self,
        ids: Sequence[int],
        log_probs: Sequence[float],
        inserted: tuple[int, int] | None = None,
        keep: Collection[str] = (),
    ) -> str:
        """Append a turn of the agent as it was sampled; return its text, for reading only.

        `inserted` is that of `TokenStream.add_turn`, `keep` that of `ChatFormat.decode`.
        """
        self.stream.add_turn(ids, log_probs, inserted)
        text = self.format.decode(ids, keep)
        self.messages.append({"role": "assistant", "content": text})
        return text

    def add(self, messages: Sequence[Message]) -> None:
        """Append observations or tool results after the agent's turn."""
        self.stream.add_context(self.increment_ids(messages))
        self.messages += messages

    def increment_ids(self, messages: Sequence[Message]) -> list[int]:
        """Return the tokens that `add` appends for these messages."""
        start, end = self.stream.last_turn
        return self.format.increment_ids(messages, self.stream.ids[start:end], self.history)

    def add_as_template(
        self, messages: Sequence[Message], history: Sequence[Message]
    ) -> int | None:
        """Append messages; where the template would write the conversation differently, its way.

        `history` are the messages until now as the template takes them. If it drops thoughts of
        earlier turns, a branch of the stream begins where they were. Returns how many tokens it
        shares with what was before; None if the conversation only grows.
        """
        whole = [*history, *messages]
        ids = [*self.stream.path, *self.increment_ids(messages)]
        if self.format.difference(whole, self._with_template_ends(ids), self._tools) is None:
            self.add(messages)
            return None
        self.messages += messages
        return self.stream.continue_from(self.format.prompt_ids(whole, self._tools))

    def _with_template_ends(self, ids: Sequence[int]) -> list[int]:
        """The present context with the template's end of turn at each turn in it."""
        spans = self.stream.context(len(self.stream))
        positions = {
            position: n for n, position in enumerate(p for a, b in spans for p in range(a, b))
        }
        turns = [
            (positions[start], positions[end - 1] + 1)
            for start, end in self.stream.turns
            if start in positions and end - 1 in positions
        ]
        return self.format.with_template_ends(ids, [*turns, (len(ids), len(ids))])

    def restart(self, text: str) -> int:
        """Continue from the initial prompt with this text added to its last message.

        A branch of the stream begins. Returns how many tokens it shares with what was before.
        """
        *before, last = self.initial
        added = {**last, "content": f"{last['content']}\n\n{text}"}
        self._restarted = (before, len(self.messages))
        self.messages.append(added)
        return self.stream.continue_from(self.format.prompt_ids([*before, added], self._tools))

    @property
    def history(self) -> Sequence[Message]:
        """The messages of the present branch, from its first one."""
        before, number = self._restarted
        return [*before, *self.messages[number:]] if number else self.messages
