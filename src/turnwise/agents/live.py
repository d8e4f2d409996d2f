"""Replies as server-sent events, which can begin while a reply is sampled."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from turnwise.agents.requests import ApiError, ChatReply, Delta, Sent, pieces
from turnwise.tools.thoughts import HARMONY_MARKS, THOUGHT_MARKS, answer_of, read_thought

_REFINEMENT = 256
"""Long texts are decoded after every 1/256 of their tokens, so that the cost stays linear."""


@dataclass
class LiveText:
    """Finds what of a growing turn can be sent already: beginnings of its thought and its text.

    Nothing is sent that may change: characters whose bytes are incomplete, what may become a tag or
    a stop string, spaces that may be at the end. A text in which a tool call may begin comes at
    its end, and so does every reply in the format harmony.
    """

    decode: Callable[[Sequence[int]], str]
    send: Callable[[Delta], None]
    num_prompt_tokens: int
    in_thought: bool
    may_call: bool
    stops: tuple[str, ...]
    _next: int = 0
    _sent: Sent = field(default_factory=Sent)

    def add(self, ids: Sequence[int]) -> None:
        """Take all tokens so far, and send what is new."""
        if len(ids) < self._next:
            return
        self._next = len(ids) + 1 + len(ids) // _REFINEMENT
        thought, text = self._read(self.decode(ids))
        # A second thought can make a thought of the text before it. Then the rest is not sent.
        is_longer = thought.startswith(self._sent.thought) and text.startswith(self._sent.text)
        new_thought, new_text = self._sent.remaining(thought, text)
        if is_longer and (new_thought or new_text):
            delta = Delta(new_thought, new_text, self.num_prompt_tokens)
            self._sent.add(delta)
            self.send(delta)

    def _read(self, text: str) -> tuple[str, str]:
        text = text.rstrip("\ufffd")
        for stop in self.stops:
            text = text.partition(stop)[0]
        marks = (*self.stops, *THOUGHT_MARKS)
        ends = (n for mark in marks for n in range(1, len(mark)) if text.endswith(mark[:n]))
        text = text[: len(text) - max(ends, default=0)]  # the end may become one of the marks
        if any(mark in text for mark in HARMONY_MARKS):
            return "", ""
        thought = read_thought(text, in_thought=self.in_thought)
        answer = "" if self.may_call else answer_of(text, in_thought=self.in_thought)
        return thought, answer.rstrip()


class EventWriter(ABC):
    """Writes replies as the events of one API, the first one while it is sampled.

    A reply has blocks: its thought, its text and each of its calls. An API says how each of them
    begins and ends. Only whole blocks may be empty.
    """

    blocks_end = True
    """False: a thought can go on after a text has begun."""

    def __init__(self) -> None:
        self.index = 0
        """Of the reply that is written."""
        self.blocks: list[str] = []
        """Of that reply, those that have begun: thought, text or call."""
        self._sent: dict[str, str] | None = None
        self._open: str | None = None

    def delta(self, delta: Delta) -> str:
        """Write what is known of the only reply while it is sampled."""
        written = self._begun(delta.num_prompt_tokens, None)
        written += self._add("thought", delta.thought)
        return written + self._add("text", delta.text)

    def end(self, replies: Sequence[ChatReply]) -> str:
        """Write what was not written yet."""
        written = ""
        for self.index, reply in enumerate(replies):
            if self.index > 0:
                self._sent, self.blocks = None, []
            written += self._begun(reply.num_prompt_tokens, reply)
            for kind, content in reply.blocks():
                if kind != "call":
                    written += self._add(kind, content, is_whole=True)
                    continue
                written += self._close()
                self.blocks.append("call")
                written += self.call(self.blocks.count("call") - 1, content)
            written += self._close() + self.end_reply(reply)
        return written + self.finish(replies)

    def _begun(self, num_prompt_tokens: int, reply: ChatReply | None) -> str:
        if self._sent is not None:
            return ""
        self._sent = {"thought": "", "text": ""}
        return self.begin(num_prompt_tokens, reply)

    def _add(self, kind: str, text: str, is_whole: bool = False) -> str:
        assert self._sent is not None
        if is_whole:  # the rest of it, unless what was sent has become something else
            sent = self._sent[kind]
            text = text[len(sent) :] if text.startswith(sent) else ""
        written = ""
        if kind not in self.blocks and (text or is_whole):
            written = self._close()
            self.blocks.append(kind)
            self._open = kind
            written += self.open(kind)
        # A thought may go on after its block has ended, which is in the whole response only.
        if self._open == kind or not self.blocks_end:
            self._sent[kind] += text
            written += "".join(self.piece(kind, piece) for piece in pieces(text))
        return written

    def _close(self) -> str:
        kind, self._open = self._open, None
        if kind is None or self._sent is None:
            return ""
        return self.close(kind, self._sent[kind])

    @abstractmethod
    def begin(self, num_prompt_tokens: int, reply: ChatReply | None) -> str:
        """Write the beginning of a reply, which is None while it is sampled."""

    def open(self, kind: str) -> str:
        return ""

    @abstractmethod
    def piece(self, kind: str, text: str) -> str: ...

    def close(self, kind: str, text: str) -> str:
        return ""

    @abstractmethod
    def call(self, number: int, call: Mapping[str, Any]) -> str: ...

    def end_reply(self, reply: ChatReply) -> str:
        return ""

    @abstractmethod
    def finish(self, replies: Sequence[ChatReply]) -> str: ...

    @abstractmethod
    def failed(self, error: ApiError) -> str:
        """Write an error after the stream has begun."""
