"""Messages into token ids: the only place that knows chat templates.

The opening is rendered once. Everything after it is an increment: the new messages are rendered
behind a short made-up conversation, and what stands after its last answer is taken. The history is
never rendered again, so what was sampled stays what was sampled, whatever a template would make of
it (some drop earlier reasoning, some merge messages).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from itertools import takewhile
from typing import Any, Protocol

from turnwise.chat.control import ControlTokens
from turnwise.chat.encoding import Encoder, quick_decoder, stands_alone
from turnwise.chat.endings import ANSWER, ANSWERED, QUESTION, Endings
from turnwise.chat.frames import Frames
from turnwise.chat.ownership import ROLES, OwnedText
from turnwise.chat.rendering import Message, Renderer
from turnwise.chat.templates import TEMPLATES
from turnwise.errors import ConfigError, did_you_mean
from turnwise.plain_mode import is_plain


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
        self._renderer = Renderer(
            tokenizer,
            _chosen_template(tokenizer, template),
            self._places,
            self._controls_of,
        )
        self.num_to_compare = 16
        """Conversations that are yet to be compared with a full rendering."""

    @property
    def template(self) -> str:
        """The template's text, from which the way of writing tool calls can be told."""
        return self._renderer.template

    @cached_property
    def control(self) -> ControlTokens:
        """The tokens that only the template and the policy may write."""
        return ControlTokens(self.tokenizer, self.template)

    def prompt_ids(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> list[int]:
        """The opening of a conversation, up to where the agent begins to speak."""
        if tools:
            return self._encode(self._renderer.render_owned(messages, tools))
        return self._encode(self._openings.write(self._renderer.completed(messages)))

    def increment_ids(
        self,
        messages: Sequence[Message],
        turn_ids: Sequence[int],
        history: Sequence[Message] = (),
    ) -> list[int]:
        """What follows the agent's turn: its end, the new messages, the start of its next turn.

        `turn_ids` are the tokens of the turn; what the agent sampled of its own end (usually the
        end-of-turn token, not after a cut by length) is not added again. `history` are all
        messages before, for templates that count them.
        """
        told = self._renderer.completed(messages, history)
        ids = self._encode(self._after_answer(told, history), is_continued=True)
        return ids[self._endings.num_closed(ids, turn_ids) :]

    def _after_answer(self, messages: Sequence[Message], history: Sequence[Message]) -> OwnedText:
        """What the template writes behind an answer for these messages."""
        if len(history) > 2 and self._endings.counts_messages:
            try:
                return self._render_after_answer(messages, _skeleton(history))
            except ConfigError:  # not with these roles, or only with more than texts
                pass
        return self._frames.write(messages)

    @cached_property
    def _openings(self) -> Frames:
        return Frames(self.template, self.render, self._renderer.render_owned, self._controls)

    @cached_property
    def _frames(self) -> Frames:
        return Frames(self.template, self._endings.after, self._render_after_answer, self._controls)

    def _controls(self, text: str) -> tuple[int, ...]:
        return self.control.of(self._encoder.quickly(text))

    def _controls_of(self, owned: OwnedText) -> tuple[int, ...]:
        return self.control.of(self._encoder.encode(owned))

    def _places(self, text: str) -> list[tuple[int, int]]:
        return self._encoder.places(text)

    def render_after_answer(self, messages: Sequence[Message]) -> str:
        """The text that the template writes for messages after an answer of the agent."""
        return self._render_after_answer(self._renderer.completed(messages)).text

    def _render_after_answer(
        self, messages: Sequence[Message], before: Sequence[Message] = (QUESTION, ANSWERED)
    ) -> OwnedText:
        try:
            owned = self._renderer.render_owned(messages, before=before)
        except ConfigError:
            if messages[0].get("role") != "tool":
                raise
            return self._render_after_call(messages, before)
        return owned.after(owned.text.index(ANSWER) + len(ANSWER))

    def _render_after_call(
        self, messages: Sequence[Message], before: Sequence[Message]
    ) -> OwnedText:
        """Tool results for templates that take them only after calls of tools.

        The agent wrote its calls itself, so what is written from their end on is taken.
        """
        results = takewhile(lambda message: message["role"] == "tool", messages)
        called: Message = {
            "role": "assistant",
            "content": "",
            "tool_calls": [_call(result) for result in results],  # some templates write only one
        }
        owned = self._renderer.render_owned([called, *messages], before=before[:-1])
        owned = owned.after(owned.text.find(ANSWER))
        own = [
            (start, token)
            for start, end, token in self.control.places(owned.text)
            if not any(a < end and start < b for a, b in owned.spans)
        ]
        start = next((start for start, token in own if token in self._endings.closers), None)
        if start is None or ANSWER not in owned.text:
            raise ConfigError("the chat template does not end a call of a tool with a token")
        return owned.after(start)

    @cached_property
    def _endings(self) -> Endings:
        return Endings(self.tokenizer, self.control, self._renderer, self._encoder)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        generation_prompt: bool = True,
    ) -> str:
        """Messages as the template writes them: for people and for comparison.

        Its text does not tell a control token from an observation that spells one; the ids of
        `prompt_ids` and `increment_ids` do.
        """
        return self._renderer.render(messages, tools, generation_prompt)

    def decode(self, ids: Sequence[int], keep: Collection[str] = ()) -> str:
        """What the agent said, without special tokens: for environments, parsers and people.

        A parser may need some of them: those in `keep` stay. A token that ends the turn is left
        out also where it is not marked special.
        """
        kept_ids = self.control.named(keep) if keep else frozenset()
        if ids and ids[-1] in self.stop_ids and ids[-1] not in kept_ids:
            ids = ids[:-1]
        if not keep:
            return self._decode_quickly(ids)
        dropped = self.control.special - kept_ids
        kept = [i for i in ids if i not in dropped]
        return str(self.tokenizer.decode(kept, skip_special_tokens=False))

    def answer_ids(self, text: str) -> list[int]:
        """A turn in which the agent says this text and ends it: what imitation learns from.

        Special tokens in it, such as those around a tool call, are the tokens that they name; but
        none that ends a turn or begins another one.
        """
        if self._encoder.adds_prefix:
            text = self._endings.lead + text
        ids = self._encoder.encode_apart(
            text,
            [(0, len(text))],
            is_continued=self._encoder.adds_prefix,
            forbidden=self._endings.turn_ids,
        )
        return [*ids, *self._endings.said]

    @property
    def closing_text(self) -> str:
        """What the template writes between an answer of the agent and the next message."""
        return self._endings.closing_text

    @property
    def closing_ids(self) -> list[int]:
        return self._endings.closing_ids

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end the agent's turn: the end of text, and the template's end of turn.

        Where a template writes none, the role of the next message is what ends a turn.
        """
        return self._endings.stop_ids

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Text that ends the turn where the template's end of turn is no token of its own."""
        return self._endings.stop_strings

    def difference(
        self,
        messages: Sequence[Message],
        ids: Sequence[int],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str | None:
        """Where a full rendering of the conversation would not be the stream; None if it is.

        For templates that change what came before, the stream stays as it was sampled; this says
        what a model served with that template will see instead.
        """
        is_asked = messages[-1].get("role") != "assistant"
        told = [self._without_lead(message) for message in messages]
        rendered = self.render(told, tools=tools, generation_prompt=is_asked)
        # Decoded again, because a tokenizer may add spaces of its own or change letters.
        text, stream = (
            str(self.tokenizer.decode(list(tokens), skip_special_tokens=False))
            for tokens in (self._encoder.quickly(rendered), ids)
        )
        if text.startswith(stream) or stream.startswith(text):
            return None
        at = next(i for i, (a, b) in enumerate(zip(text, stream, strict=False)) if a != b)
        around = slice(max(0, at - 20), at + 30)
        return f"the stream has {stream[around]!r} where the template would write {text[around]!r}"

    def _without_lead(self, message: Message) -> Message:
        """An answer without the space that the template writes before it, and the agent said."""
        content = message.get("content")
        if message.get("role") != "assistant" or not isinstance(content, str):
            return message
        return {**message, "content": content.removeprefix(self._endings.lead)}

    def with_template_ends(self, ids: Sequence[int], turns: Sequence[tuple[int, int]]) -> list[int]:
        """A stream in which each turn but the last ends as the template ends it."""
        return self._endings.with_template_ends(ids, turns)

    def _encode(self, owned: OwnedText, *, is_continued: bool = False) -> list[int]:
        tail, tail_ids = self._tail
        if not tail or not owned.text.endswith(tail):
            return self._encoder.encode(owned, is_continued=is_continued)
        before = len(owned.text) - len(tail)
        if owned.spans and owned.spans[-1][1] > before:
            return self._encoder.encode(owned, is_continued=is_continued)
        controls = owned.controls
        if controls is not None:
            controls = controls[: len(controls) - len(self.control.of(tail_ids))]
        rest = OwnedText(owned.text[:before], owned.spans, controls)
        return self._encoder.encode(rest, is_continued=is_continued) + tail_ids

    @cached_property
    def _encoder(self) -> Encoder:
        return Encoder(self.tokenizer, self.control)

    @cached_property
    def _tail(self) -> tuple[str, list[int]]:
        """What stands between a user's message and the agent's turn, and its tokens.

        Always the same, and a good part of what there is to encode. Empty where the tokens might
        depend on what comes before.
        """
        if is_plain("chat.tail"):
            return "", []
        try:
            text = self.render([{"role": "user", "content": ANSWER}])
        except ConfigError:
            return "", []
        tail = text[text.index(ANSWER) + len(ANSWER) :] if ANSWER in text else ""
        if not stands_alone(self.tokenizer, tail):
            return "", []
        return tail, self._encoder.quickly(tail)

    @cached_property
    def _decode_quickly(self) -> Callable[[Sequence[int]], str]:
        return quick_decoder(self.tokenizer)


def _skeleton(history: Sequence[Message]) -> list[Message]:
    """The same roles with short texts, for templates that count; it ends with our answer."""
    roles = [message["role"] if message["role"] in ROLES else "user" for message in history[:-1]]
    return [*({"role": role, "content": "q"} for role in roles), ANSWERED]


def _call(result: Message) -> Message:
    """A call that a tool result answers."""
    function = {"name": result.get("name") or "tool", "arguments": {"x": ANSWER}}
    call_id = result.get("tool_call_id") or "call00000"
    return {"id": call_id, "type": "function", "function": function}


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
