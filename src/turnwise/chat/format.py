"""Converts messages into token ids: the only package that knows chat templates.

A prompt is rendered once. Everything after it is an increment: the new messages are rendered behind
a short synthetic conversation, and what follows its last answer is kept. The history is never
rendered again, so the sampled tokens stay as they were sampled, also where a template would change
them (some drop earlier reasoning, some merge messages).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from itertools import takewhile
from typing import Any, Protocol

from turnwise.chat.control import ControlTokens
from turnwise.chat.encoding import Encoder
from turnwise.chat.endings import ANSWER, ANSWERED, QUESTION, Endings, end_of_answer
from turnwise.chat.ownership import ROLES, RenderedText, change_messages, change_tools
from turnwise.chat.rendering import Message, Renderer, template_text
from turnwise.chat.templates import TEMPLATES
from turnwise.chat.thinking import thinking_variables
from turnwise.errors import ConfigError, did_you_mean

_CHARACTERS_PER_TOKEN = 8
"""Texts with fewer per token of the context are encoded without being counted first."""
_PIECE = 50_000


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that is used here."""

    chat_template: Any
    eos_token_id: int | None
    all_special_tokens: list[str]
    all_special_ids: list[int]

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any: ...
    def encode(self, text: str, *, add_special_tokens: bool, verbose: bool = True) -> list[int]: ...
    def decode(self, ids: Any, *, skip_special_tokens: bool) -> Any: ...


class ChatFormat:
    """A tokenizer and its chat template.

    `template` is a name from `TEMPLATES`, the text of a Jinja template, or None for the
    tokenizer's own. `enable_thinking` turns the model's thoughts on or off; None keeps the
    template's default.
    """

    def __init__(
        self, tokenizer: Any, template: str | None = None, *, enable_thinking: bool | None = None
    ) -> None:
        self.tokenizer: Tokenizer = tokenizer
        own = _chosen_template(tokenizer, template)
        self.template = template_text(tokenizer, own)
        """The text of the template; it shows how tool calls are written."""
        self.control = ControlTokens(tokenizer, self.template)
        """The tokens that only the template and the policy may write."""
        self._encoder = Encoder(tokenizer, self.control)
        self._renderer = Renderer(tokenizer, own, self.template, self._encoder)
        self.enable_thinking = enable_thinking
        if enable_thinking is not None:
            self._renderer.variables = thinking_variables(self._renderer, enable_thinking)
        self.num_to_compare = 16
        """Conversations that are still to be compared with a full rendering."""

    def prompt_ids(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> list[int]:
        """Return the prompt of a conversation, up to where the agent's first turn starts."""
        return self._encoder.encode(self._renderer.render_with_spans(messages, tools))

    def increment_ids(
        self,
        messages: Sequence[Message],
        turn_ids: Sequence[int],
        history: Sequence[Message] = (),
    ) -> list[int]:
        """Return what follows a turn: its end, the new messages, the start of the next turn.

        `turn_ids` are the tokens of the turn. What the agent sampled of its own end (usually the
        end-of-turn token, nothing if the turn was cut by length) is not added again. `history` are
        all earlier messages, for templates that count them.
        """
        rendered = self._render_increment(self._renderer.completed(messages, history), history)
        ids = self._encoder.encode(rendered, is_continued=True)
        return ids[self._endings.num_closed(ids, turn_ids) :]

    def is_longer_than(
        self,
        num_tokens: int,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> bool:
        """Return whether a conversation surely has more tokens than this, at little cost.

        Encoding takes some hundred bytes of memory per character. So a long text is counted piece
        by piece until it has twice as many tokens: cutting a text adds few, and what a tokenizer
        merges or leaves out is not counted.
        """
        texts: list[str] = []

        def collect(text: str) -> str:
            texts.append(text)
            return text

        change_messages(messages, collect)
        change_tools(tools, collect)
        if sum(map(len, texts)) <= _CHARACTERS_PER_TOKEN * num_tokens:
            return False
        num_counted = 0
        for text in texts:
            for start in range(0, len(text), _PIECE):
                num_counted += len(self._encoder.encode_text(text[start : start + _PIECE]))
                if num_counted > 2 * num_tokens:
                    return True
        return False

    def _render_increment(
        self, messages: Sequence[Message], history: Sequence[Message]
    ) -> RenderedText:
        if len(history) > 2 and self._endings.counts_messages:
            try:
                return self._render_after_answer(messages, _skeleton(history))
            except ConfigError:  # the template refuses these roles, or contents that are texts
                pass
        return self._render_after_answer(messages)

    def render_after_answer(self, messages: Sequence[Message]) -> str:
        """Return the text that the template writes for messages after an answer of the agent."""
        return self._render_after_answer(self._renderer.completed(messages)).text

    def _render_after_answer(
        self, messages: Sequence[Message], before: Sequence[Message] = (QUESTION, ANSWERED)
    ) -> RenderedText:
        """Render messages behind a synthetic conversation; return what follows its answer."""
        try:
            rendered = self._renderer.render_with_spans(messages, before=before)
        except ConfigError:
            if messages[0].get("role") != "tool":
                raise
            return self._render_after_call(messages, before)
        return rendered.after(end_of_answer(rendered.text))

    def _render_after_call(
        self, messages: Sequence[Message], before: Sequence[Message]
    ) -> RenderedText:
        """Render tool results for templates that accept them only after tool calls.

        The agent sampled its calls itself, so only what follows them is returned.
        """
        results = takewhile(lambda message: message["role"] == "tool", messages)
        called: Message = {
            "role": "assistant",
            "content": "",
            "tool_calls": [_call(result) for result in results],  # some templates write only one
        }
        rendered = self._renderer.render_with_spans([called, *messages], before=before[:-1])
        rendered = rendered.after(rendered.text.find(ANSWER))
        own = [
            (start, token)
            for start, end, token in self.control.spans(rendered.text)
            if not any(a < end and start < b for a, b in rendered.spans)
        ]
        start = next((start for start, token in own if token in self._endings.closers), None)
        if start is None or ANSWER not in rendered.text:
            raise ConfigError("the chat template does not end a call of a tool with a token")
        return rendered.after(start)

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
        """Return messages as the template writes them, for people and for comparison.

        The text does not distinguish a control token from an observation that spells one; the ids
        of `prompt_ids` and `increment_ids` do.
        """
        return self._renderer.render(messages, tools, generation_prompt)

    def decode(self, ids: Sequence[int], keep: Collection[str] = ()) -> str:
        """Return the text of a turn without special tokens, for environments, parsers and people.

        Special tokens whose names are in `keep` stay, for parsers that need them. A token that
        ends the turn is left out even if it is not marked special.
        """
        kept_ids = self.control.named(keep) if keep else frozenset()
        if ids and ids[-1] in self.stop_ids and ids[-1] not in kept_ids:
            ids = ids[:-1]
        if not keep:
            return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))
        dropped = self.control.special - kept_ids
        kept = [i for i in ids if i not in dropped]
        return str(self.tokenizer.decode(kept, skip_special_tokens=False))

    def written_ids(self, text: str) -> list[int]:
        """Return the tokens of a text of the template's own that continues another text."""
        return self._encoder.encode(RenderedText(text), is_continued=True)

    def answer_ids(self, text: str) -> list[int]:
        """Return the tokens of a turn with this text and its end, for imitation learning.

        The text may name special tokens, such as those around a tool call, but none that ends a
        turn or starts another one.
        """
        if self._encoder.adds_prefix:
            text = self._endings.leading_space + text
        ids = self._encoder.encode_apart(
            text,
            [(0, len(text))],
            is_continued=self._encoder.adds_prefix,
            forbidden=self._endings.boundary_ids,
        )
        return [*ids, *self._endings.sampled_end]

    @property
    def closing_text(self) -> str:
        """The text that the template writes between an answer and the next message."""
        return self._endings.closing_text

    @property
    def closing_ids(self) -> list[int]:
        return self._endings.closing_ids

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end the agent's turn: the end of text, and the template's end of turn.

        If the template writes none, the token of the next message's role ends a turn.
        """
        return self._endings.stop_ids

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Text that ends the turn, if the template's end of turn is not a single token."""
        return self._endings.stop_strings

    def difference(
        self,
        messages: Sequence[Message],
        ids: Sequence[int],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str | None:
        """Return where a full rendering of the conversation differs from the stream; None: nowhere.

        If a template changes earlier messages, the stream stays as it was sampled; a model served
        with that template sees the changed text instead.
        """
        needs_prompt = messages[-1].get("role") != "assistant"
        cleaned = [self._without_leading_space(message) for message in messages]
        rendered = self.render(cleaned, tools=tools, generation_prompt=needs_prompt)
        # Both are decoded, because a tokenizer may add spaces or normalise characters.
        text, stream = (
            str(self.tokenizer.decode(list(tokens), skip_special_tokens=False))
            for tokens in (self._encoder.encode_text(rendered), ids)
        )
        if text.startswith(stream) or stream.startswith(text):
            return None
        at = next(i for i, (a, b) in enumerate(zip(text, stream, strict=False)) if a != b)
        around = slice(max(0, at - 20), at + 30)
        return f"the stream has {stream[around]!r} where the template would write {text[around]!r}"

    def _without_leading_space(self, message: Message) -> Message:
        """Return an answer without the space that the template writes and the agent sampled."""
        content = message.get("content")
        if message.get("role") != "assistant" or not isinstance(content, str):
            return message
        return {**message, "content": content.removeprefix(self._endings.leading_space)}

    def with_template_ends(self, ids: Sequence[int], turns: Sequence[tuple[int, int]]) -> list[int]:
        """Return the stream with the template's end of turn at each turn but the last."""
        return self._endings.with_template_ends(ids, turns)


def _skeleton(history: Sequence[Message]) -> list[Message]:
    """Return the same roles with short texts, ending with the synthetic answer."""
    roles = [message["role"] if message["role"] in ROLES else "user" for message in history[:-1]]
    return [*({"role": role, "content": "q"} for role in roles), ANSWERED]


def _call(result: Message) -> Message:
    """Return a call to which a tool result can belong."""
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
