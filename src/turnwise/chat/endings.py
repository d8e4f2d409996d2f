"""How a template ends the agent's turn, found out by rendering a made-up conversation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from turnwise.chat.control import ControlTokens, end_ids
from turnwise.chat.encoding import Encoder
from turnwise.chat.ownership import OwnedText
from turnwise.chat.rendering import Message, Renderer
from turnwise.errors import ConfigError

# Stands for an answer of the agent in the made-up conversation; no text will hold it by chance.
ANSWER = "turnwiseAnswer7f3a"
QUESTION: Message = {"role": "user", "content": "q"}
ANSWERED: Message = {"role": "assistant", "content": ANSWER}


class Endings:
    """What stands between an answer of the agent and what follows it.

    Three renderings tell: the answer as the last message (`_final`), before a message of the user
    (`_next`), and before another turn of the agent (`_again`). Most templates write the same end
    in all of them. Some end only the last answer with the end of text (Phi), some end the last
    answer otherwise than earlier ones (harmony), some do not end it at all (GLM).
    """

    def __init__(
        self, tokenizer: Any, control: ControlTokens, renderer: Renderer, encoder: Encoder
    ) -> None:
        self._tokenizer = tokenizer
        self._control = control
        self._renderer = renderer
        self._encoder = encoder

    def after(self, messages: Sequence[Message], *, generation_prompt: bool = True) -> str:
        """The text that the template writes after an answer, for these messages."""
        told = [QUESTION, ANSWERED, *messages]
        text = self._renderer.render(told, generation_prompt=generation_prompt)
        return text[text.index(ANSWER) + len(ANSWER) :]

    @cached_property
    def counts_messages(self) -> bool:
        """Whether what is written depends on how many messages came before (ChatGLM's rounds)."""
        told = [QUESTION, {"role": "assistant", "content": "a"}, QUESTION, ANSWERED, QUESTION]
        try:
            text = self._renderer.render(told)
        except ConfigError:
            return False
        return text[text.index(ANSWER) + len(ANSWER) :] != self._next

    @cached_property
    def closing_text(self) -> str:
        """What stands between an answer and the next message."""
        if self._next.startswith(self._final):
            return self._final
        if self._end_id is None:
            return _common_start(self._next, self._final)
        name = self._control.names[self._end_id]
        before, name, _ = self._next.partition(name)
        return before + name

    @cached_property
    def closing_ids(self) -> list[int]:
        return self._encode(self.closing_text)

    @cached_property
    def stop_ids(self) -> frozenset[int]:
        """Tokens at which a turn is over."""
        ends = end_ids(self._tokenizer, self._control)
        if self._final_id is not None:
            return ends | {self._final_id}
        return ends | set(self._next_role_ids)

    @cached_property
    def stop_strings(self) -> tuple[str, ...]:
        """Text at which a turn is over where no token of the template says so."""
        is_token = self._final_id is not None or not self.closing_text
        return () if is_token else (self.closing_text,)

    @cached_property
    def said(self) -> list[int]:
        """What the agent itself says at the end of a turn."""
        ids = self._encode(self._final)
        num = next((n for n, i in enumerate(ids, 1) if i in self.stop_ids), len(ids))
        eos = self._tokenizer.eos_token_id
        return ids[:num] or self._next_role_ids[:1] or ([] if eos is None else [eos])

    @cached_property
    def lead(self) -> str:
        """White space that the template writes between the agent's prompt and its answer."""
        try:
            asked = self._renderer.render([QUESTION])
            text = self._renderer.render([QUESTION, ANSWERED], generation_prompt=False)
        except ConfigError:
            return ""
        between = text[len(asked) : text.index(ANSWER)] if text.startswith(asked) else ""
        return between if between.isspace() else ""

    @cached_property
    def turn_ids(self) -> frozenset[int]:
        """Control tokens that end a turn or begin another one: no turn may hold them inside."""
        if self._end_id not in self.stop_ids:
            return self.stop_ids  # harmony: a turn has several messages
        return self.stop_ids | set(self._control.of(self._encode(self._next)))

    @cached_property
    def closers(self) -> frozenset[int]:
        """Tokens with which the template or the agent ends a turn."""
        closers = self.stop_ids - set(self._next_role_ids)
        return closers if self._end_id is None else closers | {self._end_id}

    def num_closed(self, ids: Sequence[int], turn: Sequence[int]) -> int:
        """How many of the tokens after a turn's answer were sampled in the turn itself."""
        if not turn:
            return 0
        last = turn[-1]
        if last in self._next_role_ids:  # it ended the turn with the next one's role
            return int(bool(ids) and ids[0] == last)
        if last in self.stop_ids:  # whichever token ended it, it needs no other end
            at = next((n for n, i in enumerate(ids) if i in self._control.ids), None)
            return 0 if at is None or ids[at] not in self.closers else at + 1
        if not self.stop_strings:
            return 0
        closing = self.closing_ids
        if list(ids[: len(closing)]) != closing:
            return 0
        lengths = range(min(len(closing), len(turn)), 0, -1)
        return next((n for n in lengths if list(turn[-n:]) == closing[:n]), 0)

    def with_template_ends(self, ids: Sequence[int], turns: Sequence[tuple[int, int]]) -> list[int]:
        """The stream with the template's end for each turn but the last, where a token ended it."""
        ended, done = [], 0
        for _, end in turns[:-1]:
            if ids[end - 1] in self.closers:
                ended += [*ids[done : end - 1], *([] if self._end_id is None else [self._end_id])]
                done = end
        return [*ended, *ids[done:]]

    @cached_property
    def _final(self) -> str:
        return self.after([], generation_prompt=False)

    @cached_property
    def _next(self) -> str:
        return self.after([QUESTION])

    @cached_property
    def _again(self) -> str:
        try:
            return self.after([])
        except ConfigError:
            return ""

    @cached_property
    def _final_id(self) -> int | None:
        """The token that ends the last answer."""
        return self._control.first(self._encode(self._final))

    @cached_property
    def _end_id(self) -> int | None:
        """The token that ends an answer before another message."""
        if self._final_id is None:
            return None
        found = self._control.first(self._encode(self._next))
        is_end = found in (self._final_id, self._control.first(self._encode(self._again)))
        return found if is_end else None

    @cached_property
    def _next_role_ids(self) -> list[int]:
        """Control tokens that open the next message where nothing closes an answer (GLM's way)."""
        found: list[int] = []
        if self.closing_text:
            return found
        for role in ("user", "tool"):
            try:
                text = self.after([{"role": role, "content": "q"}])
            except ConfigError:  # a template need not know tools
                continue
            first = self._encode(text)[:1]
            found += [i for i in first if i in self._control.ids and i not in found]
        return found

    def _encode(self, text: str) -> list[int]:
        return self._encoder.encode(OwnedText(text), is_continued=True)


def _common_start(a: str, b: str) -> str:
    num = next(
        (n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )
    return a[:num]
