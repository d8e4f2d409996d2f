"""How a template ends the agent's turn, measured by rendering a synthetic conversation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from turnwise.chat.control import ControlTokens, end_ids
from turnwise.chat.encoding import Encoder
from turnwise.chat.ownership import RenderedText
from turnwise.chat.rendering import Message, Renderer
from turnwise.errors import ConfigError

# An answer of the agent in the synthetic conversation; no other text contains it.
ANSWER = "turnwiseAnswer7f3a"
QUESTION: Message = {"role": "user", "content": "q"}
ANSWERED: Message = {"role": "assistant", "content": ANSWER}


def end_of_answer(text: str) -> int:
    """Return where the synthetic answer ends in a rendering."""
    if ANSWER not in text:
        raise ConfigError(
            "the chat template does not write the answers of the assistant, expected every "
            "message of a conversation. It is not made for several turns; give another with "
            "ChatFormat(tokenizer, template)."
        )
    return text.index(ANSWER) + len(ANSWER)


class Endings:
    """What a template writes between an answer of the agent and what follows it.

    Three renderings show it: the answer as the last message (`_final`), before a user message
    (`_next`), and before another turn of the agent (`_again`). Most templates write the same end
    in all of them. Some end only the last answer with the end of text (Phi), some end the last
    answer differently from earlier ones (harmony), some do not end it at all (GLM).
    """

    def __init__(
        self, tokenizer: Any, control: ControlTokens, renderer: Renderer, encoder: Encoder
    ) -> None:
        self._tokenizer = tokenizer
        self._control = control
        self._renderer = renderer
        self._encoder = encoder

    def after(self, messages: Sequence[Message], *, generation_prompt: bool = True) -> str:
        """Return the text that the template writes after an answer, for these messages."""
        conversation = [QUESTION, ANSWERED, *messages]
        text = self._renderer.render(conversation, generation_prompt=generation_prompt)
        return text[end_of_answer(text) :]

    @cached_property
    def counts_messages(self) -> bool:
        """Whether the output depends on the number of earlier messages (ChatGLM's rounds)."""
        earlier = [QUESTION, {"role": "assistant", "content": "a"}]
        try:
            text = self._renderer.render([*earlier, QUESTION, ANSWERED, QUESTION])
            return text[end_of_answer(text) :] != self._next
        except ConfigError:
            return False

    @cached_property
    def closing_text(self) -> str:
        """The text between an answer and the next message."""
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
        """Tokens that end a turn."""
        ends = end_ids(self._tokenizer, self._control)
        if self._final_id is not None:
            return ends | {self._final_id}
        return ends | set(self._next_role_ids)

    @cached_property
    def stop_strings(self) -> tuple[str, ...]:
        """Text that ends a turn, if no token of the template does."""
        is_token = self._final_id is not None or not self.closing_text
        return () if is_token else (self.closing_text,)

    @cached_property
    def sampled_end(self) -> list[int]:
        """The tokens that the agent itself samples at the end of a turn."""
        ids = self._encode(self._final)
        num = next((n for n, i in enumerate(ids, 1) if i in self.stop_ids), len(ids))
        eos = self._tokenizer.eos_token_id
        return ids[:num] or self._next_role_ids[:1] or ([] if eos is None else [eos])

    @cached_property
    def leading_space(self) -> str:
        """White space that the template writes between the generation prompt and the answer."""
        try:
            prompt = self._renderer.render([QUESTION])
            text = self._renderer.render([QUESTION, ANSWERED], generation_prompt=False)
            start = end_of_answer(text) - len(ANSWER)
        except ConfigError:
            return ""
        between = text[len(prompt) : start] if text.startswith(prompt) else ""
        return between if between.isspace() else ""

    @cached_property
    def boundary_ids(self) -> frozenset[int]:
        """Control tokens that end a turn or start another one; a turn must not contain them."""
        if self._end_id not in self.stop_ids:
            return self.stop_ids  # harmony: a turn has several messages
        return self.stop_ids | set(self._control.of(self._encode(self._next)))

    @cached_property
    def closers(self) -> frozenset[int]:
        """Tokens with which the template or the agent ends a turn; not those of the next role."""
        closers = self.stop_ids - set(self._next_role_ids)
        return closers if self._end_id is None else closers | {self._end_id}

    def num_closed(self, ids: Sequence[int], turn: Sequence[int]) -> int:
        """Return how many of the tokens after an answer were sampled in the turn itself."""
        if not turn:
            return 0
        last = turn[-1]
        if last in self._next_role_ids:  # the agent sampled the role of the next message
            return int(bool(ids) and ids[0] == last)
        if last in self.stop_ids:  # any of them is enough
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
        """Return the stream with the template's end-of-turn token at each turn but the last."""
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
        """Control tokens that start the next message, if nothing ends an answer (as in GLM)."""
        found: list[int] = []
        if self.closing_text:
            return found
        for role in ("user", "tool"):
            try:
                text = self.after([{"role": role, "content": "q"}])
            except ConfigError:  # a template without tools
                continue
            first = self._encode(text)[:1]
            found += [i for i in first if i in self._control.ids and i not in found]
        return found

    def _encode(self, text: str) -> list[int]:
        return self._encoder.encode(RenderedText(text), is_continued=True)


def _common_start(a: str, b: str) -> str:
    num = next(
        (n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )
    return a[:num]
