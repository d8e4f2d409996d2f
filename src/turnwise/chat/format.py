"""Messages into token ids: the only place that knows chat templates.

The opening is rendered once. Everything after it is an increment: the new messages are rendered
behind a short made-up conversation, and what stands after its last answer is taken. The history is
never rendered again, so what was sampled stays what was sampled, whatever a template would make of
it (some drop earlier reasoning, some merge messages).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol, TypeAlias

from turnwise.chat.encoding import quick_decoder, quick_encoder, stands_alone
from turnwise.chat.frames import Frames
from turnwise.chat.templates import TEMPLATES
from turnwise.errors import ConfigError, did_you_mean

Message: TypeAlias = Mapping[str, Any]
"""`{"role": "user", "content": "Hello."}`; roles are system, user, assistant and tool."""

# Stands for an answer of the agent in the made-up conversation; no text will hold it by chance.
_ANSWER = "turnwiseAnswer7f3a"
# Cuts special tokens' names inside messages in two; a character that is no character.
_CUT = "\ufdd0"


class Tokenizer(Protocol):
    """What is used of a Hugging Face tokenizer."""

    chat_template: Any
    eos_token_id: int | None
    all_special_tokens: list[str]
    all_special_ids: list[int]

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any: ...
    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...
    def decode(self, ids: Any, *, skip_special_tokens: bool) -> Any: ...


class ChatFormat:
    """A tokenizer and its chat template, as token ids.

    `template` is a name from `TEMPLATES`, the text of a Jinja template, or None for the
    tokenizer's own.
    """

    def __init__(self, tokenizer: Any, template: str | None = None) -> None:
        self.tokenizer: Tokenizer = tokenizer
        self._template = _chosen_template(tokenizer, template)
        self.num_to_compare = 16
        """Conversations that are yet to be compared with a full rendering."""

    @property
    def template(self) -> str:
        """The template's text, from which the way of writing tool calls can be told."""
        own = self.tokenizer.chat_template if self._template is None else self._template
        if isinstance(own, Mapping):  # several by name, as some tokenizers have them
            own = own.get("tool_use") or own.get("default") or ""
        return str(own)

    def prompt_ids(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> list[int]:
        """The opening of a conversation, up to where the agent begins to speak."""
        cut = None if tools else self._cut_texts(messages)
        if cut is None:
            return self._encode(self.render(messages, tools=tools))
        return self._encode(self._openings.write(cut))

    def increment_ids(self, messages: Sequence[Message], turn_ids: Sequence[int]) -> list[int]:
        """What follows the agent's turn: its end, the new messages, the start of its next turn.

        `turn_ids` are the tokens of the turn; what the agent sampled of its own end (usually the
        end-of-turn token, not after a cut by length) is not added again.
        """
        after = self._after_answer(messages)
        if not after.startswith(self.closing_text):
            return self._encode(after)  # a template that closes otherwise before such a message
        rest = self._encode(after[len(self.closing_text) :])
        if rest and turn_ids and rest[0] == turn_ids[-1] and rest[0] in self._next_role_ids:
            return rest[1:]  # the agent ended its turn with the next one's role
        return self.closing_ids[self._num_closed(turn_ids) :] + rest

    def _after_answer(self, messages: Sequence[Message]) -> str:
        """What the template writes behind an answer for these messages."""
        cut = self._cut_texts(messages)
        return self._render_after_answer(messages) if cut is None else self._frames.write(cut)

    def _cut_texts(self, messages: Sequence[Message]) -> list[Message] | None:
        """The same without special tokens inside; None where a content is no text."""
        cut: list[Message] = []
        for message in messages:
            content = message.get("content")
            if not isinstance(content, str):
                return None
            text = self._cut(content)
            cut.append(message if text is content else {**message, "content": text})
        return cut

    @cached_property
    def _openings(self) -> Frames:
        return Frames(self.template, self.render, self._cut)

    @cached_property
    def _frames(self) -> Frames:
        return Frames(self.template, self._render_after_answer, self._cut)

    def _render_after_answer(self, messages: Sequence[Message]) -> str:
        text = self.render([_QUESTION, _ANSWERED, *messages])
        return text[text.index(_ANSWER) + len(_ANSWER) :]

    def _num_closed(self, turn_ids: Sequence[int]) -> int:
        """How many of the closing tokens the agent has sampled itself."""
        if not self.stop_strings:  # a token ends the turn: either it was sampled, or nothing was
            return self._closed_by.get(turn_ids[-1], 0) if turn_ids else 0
        closing = self.closing_ids
        lengths = range(min(len(closing), len(turn_ids)), 0, -1)
        return next((n for n in lengths if list(turn_ids[-n:]) == closing[:n]), 0)

    @cached_property
    def _closed_by(self) -> dict[int, int]:
        """How many of the closing tokens are there when a turn ends with this one."""
        closing = self.closing_ids
        return {i: closing.index(i) + 1 for i in self.stop_ids if i in closing}

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        generation_prompt: bool = True,
    ) -> str:
        """Messages as the template writes them; special tokens inside a message are cut in two.

        An observation that holds the text of an end-of-turn token is an observation and ends
        nothing: `_encode` puts the halves together as ordinary text.
        """
        safe = [{**message, "content": self._cut(message.get("content"))} for message in messages]
        try:
            text = self.tokenizer.apply_chat_template(
                safe,
                tools=list(tools) if tools else None,
                chat_template=self._template,
                add_generation_prompt=generation_prompt,
                tokenize=False,
            )
        except Exception as error:  # whatever a template raises, it is about these messages
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise ConfigError(
                f"the chat template does not take messages of the roles {roles}: {error}"
            ) from error
        return str(text)

    def decode(self, ids: Sequence[int], keep: Collection[str] = ()) -> str:
        """What the agent said, without special tokens: for environments, parsers and people.

        A parser may need some of them: those in `keep` stay.
        """
        if not keep:
            return self._decode_quickly(ids)
        special = zip(
            self.tokenizer.all_special_ids, self.tokenizer.all_special_tokens, strict=True
        )
        dropped = {i for i, token in special if token not in keep}
        kept = [i for i in ids if i not in dropped]
        return str(self.tokenizer.decode(kept, skip_special_tokens=False))

    def answer_ids(self, text: str) -> list[int]:
        """A turn in which the agent says this text and ends it: what imitation learns from.

        Special tokens in it, such as those around a tool call, are the tokens that they name.
        """
        closing, ends = self.closing_ids, self.stop_ids
        num_closing = next((n for n, i in enumerate(closing, 1) if i in ends), len(closing))
        end = closing[:num_closing] or self._next_role_ids[:1]
        return [*self.tokenizer.encode(text, add_special_tokens=False), *end]

    @cached_property
    def closing_text(self) -> str:
        """What the template writes between an answer of the agent and the next message."""
        text = self.render([_QUESTION, _ANSWERED], generation_prompt=False)
        return text[text.index(_ANSWER) + len(_ANSWER) :]

    @cached_property
    def closing_ids(self) -> list[int]:
        return self._encode(self.closing_text)

    @cached_property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end the agent's turn: the end of text, and the template's end of turn.

        Where a template writes none, the role of the next message is what ends a turn.
        """
        special = set(self.tokenizer.all_special_ids)
        ends = [i for i in self.closing_ids if i in special][:1] or self._next_role_ids
        eos = self.tokenizer.eos_token_id
        return frozenset(ends if eos is None else [*ends, eos])

    @cached_property
    def _next_role_ids(self) -> list[int]:
        """Special tokens that open the next message where nothing closes an answer (GLM's way)."""
        if self.closing_text:
            return []
        special, found = set(self.tokenizer.all_special_ids), []
        for role in ("user", "tool"):
            try:
                text = self._render_after_answer([{"role": role, "content": "q"}])
            except ConfigError:  # a template need not know tools
                continue
            first = self._encode(text)[:1]
            found += [i for i in first if i in special and i not in found]
        return found

    @cached_property
    def stop_strings(self) -> tuple[str, ...]:
        """Text that ends the turn where the template's end of turn is no token of its own."""
        is_token = any(i in self.stop_ids for i in self.closing_ids)
        return () if is_token or not self.closing_text else (self.closing_text,)

    def difference(self, messages: Sequence[Message], ids: Sequence[int]) -> str | None:
        """Where a full rendering of the conversation would not be the stream; None if it is.

        For templates that change what came before, the stream stays as it was sampled; this says
        what a model served with that template will see instead.
        """
        text = self.render(messages, generation_prompt=False).replace(_CUT, "")
        stream = str(self.tokenizer.decode(list(ids), skip_special_tokens=False))
        if text.startswith(stream) or stream.startswith(text):
            return None
        at = next(i for i, (a, b) in enumerate(zip(text, stream, strict=False)) if a != b)
        around = slice(max(0, at - 20), at + 30)
        return f"the stream has {stream[around]!r} where the template would write {text[around]!r}"

    def _encode(self, text: str) -> list[int]:
        tail, tail_ids = self._tail
        if tail and text.endswith(tail):
            return self._encode_cut(text[: -len(tail)]) + tail_ids
        return self._encode_cut(text)

    def _encode_cut(self, text: str) -> list[int]:
        if _CUT not in text:
            return self._encode_piece(text)
        return [i for piece in text.split(_CUT) for i in self._encode_piece(piece)]

    @cached_property
    def _tail(self) -> tuple[str, list[int]]:
        """What stands between a user's message and the agent's turn, and its tokens.

        Always the same, and a good part of what there is to encode. Empty where the tokens might
        depend on what comes before.
        """
        try:
            text = self.render([{"role": "user", "content": _ANSWER}])
        except ConfigError:
            return "", []
        tail = text[text.index(_ANSWER) + len(_ANSWER) :] if _ANSWER in text else ""
        return (tail, self._encode_cut(tail)) if stands_alone(self.tokenizer, tail) else ("", [])

    @cached_property
    def _encode_piece(self) -> Callable[[str], list[int]]:
        return quick_encoder(self.tokenizer)

    @cached_property
    def _decode_quickly(self) -> Callable[[Sequence[int]], str]:
        return quick_decoder(self.tokenizer)

    @cached_property
    def _special(self) -> re.Pattern[str]:
        tokens = [token for token in self.tokenizer.all_special_tokens if len(token) > 1]
        return re.compile("|".join([_CUT, *map(re.escape, tokens)]))

    def _cut(self, content: Any) -> str:
        text = "" if content is None else str(content)
        if self._special.search(text) is None:
            return text
        text = text.replace(_CUT, "")
        for token in self.tokenizer.all_special_tokens:
            if len(token) > 1:
                text = text.replace(token, token[0] + _CUT + token[1:])
        return text


_QUESTION: Message = {"role": "user", "content": "q"}
_ANSWERED: Message = {"role": "assistant", "content": _ANSWER}


def _chosen_template(tokenizer: Any, template: str | None) -> str | None:
    if template is None:
        if getattr(tokenizer, "chat_template", None):
            return None
        raise ConfigError(
            "this tokenizer has no chat template. Choose one by name: "
            f"ChatFormat(tokenizer, {next(iter(TEMPLATES))!r}); there are {', '.join(TEMPLATES)}."
        )
    if template in TEMPLATES:
        return TEMPLATES[template]
    if "{{" in template or "{%" in template:
        return template
    raise ConfigError(
        f"there is no chat template {template!r}. {did_you_mean(template, TEMPLATES)} "
        "The text of a Jinja template can be given instead of a name."
    )
