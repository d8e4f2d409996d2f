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
from os.path import commonprefix
from typing import Any

from turnwise.chat.encoding import ControlTokens, Encoder, end_ids
from turnwise.chat.ownership import RenderedText
from turnwise.chat.rendering import Message, Renderer, Tools
from turnwise.errors import ConfigError, did_you_mean
from turnwise.tools.thoughts import THOUGHT_ENDS, THOUGHT_MARKS, may_open_thought, opens_thought

_NUM_TAG_TOKENS = 12
"""More tokens than the tag that starts a thought and the space after it can have."""
_CHATML = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"""
_PLAIN = """\
{%- for message in messages -%}
{{ message.role | capitalize + ': ' + message.content + '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ 'Assistant:' }}{%- endif -%}"""
TEMPLATES = {"chatml": _CHATML, "plain": _PLAIN}
"""Chat templates by name, for tokenizers without one. Their markers are plain text, which a
tokenizer encodes as special tokens if it knows them."""
# An answer of the agent in the synthetic conversation; no other text contains it.
ANSWER = "turnwiseAnswer7f3a"
QUESTION: Message = {"role": "user", "content": "q"}
ANSWERED: Message = {"role": "assistant", "content": ANSWER}
# Ends of a turn that only a generation_config lists; templates do not write them.
_KNOWN_ENDS = ("<|eom_id|>", "<|call|>")
# Qwen3, GLM, SmolLM3 and Hunyuan have the first, DeepSeek-V3.1 and Granite the second.
_THINKING = ("enable_thinking", "thinking")


class ChatFormat:
    """A tokenizer and its chat template.

    `template` is a name from `TEMPLATES`, the text of a Jinja template, or None for the
    tokenizer's own. `enable_thinking` turns the model's thoughts on or off; None keeps the
    template's default.
    """

    def __init__(
        self, tokenizer: Any, template: str | None = None, *, enable_thinking: bool | None = None
    ) -> None:
        self.tokenizer = tokenizer
        if template is None and not getattr(tokenizer, "chat_template", None):
            raise ConfigError(
                "this tokenizer has no chat template. Choose one by name: ChatFormat(tokenizer, "
                f"{next(iter(TEMPLATES))!r}); there are {', '.join(TEMPLATES)}."
            )
        if template in TEMPLATES:
            template = TEMPLATES[template]
        elif template is not None and "{{" not in template and "{%" not in template:
            raise ConfigError(
                f"there is no chat template {template!r}. {did_you_mean(template, TEMPLATES)} "
                "The text of a Jinja template can be given instead of a name."
            )
        text = tokenizer.chat_template if template is None else template
        if isinstance(text, Mapping):  # some tokenizers have several, by name
            text = text.get("tool_use") or text.get("default") or ""
        self.template = str(text)
        """The text of the template; it shows how tool calls are written."""
        self._may_open_thought = may_open_thought(self.template)
        self.control = ControlTokens(tokenizer, self.template)
        """The tokens that only the template and the policy may write."""
        self._encoder = Encoder(tokenizer, self.control)
        self._renderer = Renderer(tokenizer, template, self.template, self._encoder)
        self.enable_thinking = enable_thinking
        if enable_thinking is not None:
            self._set_thinking(enable_thinking)

    def _set_thinking(self, enable: bool) -> None:
        for name in _THINKING:
            written = []
            for value in (True, False):
                self._renderer.variables = {name: value}
                written.append(self._renderer.render([QUESTION]))
            if written[0] != written[1]:
                self._renderer.variables = {name: enable}
                return
        raise ConfigError(
            f"enable_thinking got {enable}, and this chat template writes the same prompt with and "
            f"without thoughts (it has no variable {' or '.join(_THINKING)}). Leave "
            "enable_thinking out; limits.max_thinking_tokens bounds the thoughts of any model."
        )

    def prompt_ids(self, messages: Sequence[Message], tools: Tools = None) -> list[int]:
        """Return the prompt of a conversation, up to where the agent's first turn starts."""
        return self._encoder.encode(self._renderer.render_with_spans(messages, tools))

    def increment_ids(
        self, messages: Sequence[Message], turn_ids: Sequence[int], history: Sequence[Message] = ()
    ) -> list[int]:
        """Return what follows a turn: its end, the new messages, the start of the next turn.

        `turn_ids` are the tokens of the turn. What the agent sampled of its own end (usually the
        end-of-turn token, nothing if the turn was cut by length) is not added again. `history` are
        all earlier messages, for templates that count them.
        """
        rendered = self.render_after_answer(messages, history)
        ids = self._encoder.encode(rendered, is_continued=True)
        return ids[self._num_closed(ids, turn_ids) :]

    def render_after_answer(
        self, messages: Sequence[Message], history: Sequence[Message] = ()
    ) -> RenderedText:
        """Render messages behind a synthetic conversation; return what follows its answer."""
        messages = self._renderer.completed(messages, history)
        try:
            rendered = self._renderer.render_with_spans(messages, before=(QUESTION, ANSWERED))
        except ConfigError:
            if messages[0].get("role") != "tool":
                raise
            return self._render_after_call(messages)
        return rendered.after(_end_of_answer(rendered.text))

    def _render_after_call(self, messages: Sequence[Message]) -> RenderedText:
        """Render tool results for templates that accept them only after tool calls.

        The agent sampled its calls itself, so only what follows them is returned.
        """
        calls = []
        for result in takewhile(lambda message: message["role"] == "tool", messages):
            function = {"name": result.get("name") or "tool", "arguments": {"x": ANSWER}}
            call_id = result.get("tool_call_id") or "call00000"
            calls.append({"id": call_id, "type": "function", "function": function})
        called: Message = {"role": "assistant", "content": "", "tool_calls": calls}
        rendered = self._renderer.render_with_spans([called, *messages], before=(QUESTION,))
        rendered = rendered.after(rendered.text.find(ANSWER))
        written = [
            (start, token)
            for start, end, token in self.control.spans(rendered.text)
            if not any(a < end and start < b for a, b in rendered.spans)
        ]
        start = next((start for start, token in written if token in self.turn_end.closers), None)
        if start is None or ANSWER not in rendered.text:
            raise ConfigError("the chat template does not end a call of a tool with a token")
        return rendered.after(start)

    def render(
        self, messages: Sequence[Message], *, tools: Tools = None, generation_prompt: bool = True
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

    @cached_property
    def thought_marks(self) -> tuple[str, ...]:
        """The tags of thoughts that this tokenizer would drop as special tokens."""
        encode = self.tokenizer.encode
        return tuple(
            mark
            for mark in THOUGHT_MARKS
            if not self.decode(encode(mark, add_special_tokens=False))
        )

    def begins_in_thought(self, prompt_ids: Sequence[int]) -> bool:
        """Whether a turn after these tokens begins inside a thought, which the template started."""
        return self._may_open_thought and opens_thought(self._last_text(prompt_ids))

    def may_think(self, prompt_ids: Sequence[int]) -> bool:
        """Whether a turn after these tokens may have a thought: the template has not ended one."""
        if not self._may_open_thought:
            return False
        return not self._last_text(prompt_ids).rstrip().endswith(THOUGHT_ENDS)

    def _last_text(self, prompt_ids: Sequence[int]) -> str:
        last = list(prompt_ids[max(0, len(prompt_ids) - _NUM_TAG_TOKENS) :])
        return str(self.tokenizer.decode(last, skip_special_tokens=False))

    def written_ids(self, text: str) -> list[int]:
        """Return the tokens of a text of the template's own that continues another text."""
        return self._encoder.encode(RenderedText(text), is_continued=True)

    def answer_ids(self, text: str) -> list[int]:
        """Return the tokens of a turn with this text and its end, for imitation learning.

        The text may name special tokens, such as those around a tool call, but none that ends a
        turn or starts another one.
        """
        if self._encoder.adds_prefix:
            text = self._leading_space + text
        ids = self._encoder.encode_apart(
            text,
            [(0, len(text))],
            is_continued=self._encoder.adds_prefix,
            forbidden=self.turn_end.boundary_ids,
        )
        return [*ids, *self.turn_end.sampled_ids]

    def difference(
        self, messages: Sequence[Message], ids: Sequence[int], tools: Tools = None
    ) -> str | None:
        """Return where a full rendering of the conversation differs from the stream; None: nowhere.

        If a template changes earlier messages, the stream stays as it was sampled; a model served
        with that template sees the changed text instead.
        """
        needs_prompt = messages[-1].get("role") != "assistant"
        # The space that the template writes before an answer was sampled by the agent.
        cleaned = [
            {**message, "content": message["content"].removeprefix(self._leading_space)}
            if message.get("role") == "assistant" and isinstance(message.get("content"), str)
            else message
            for message in messages
        ]
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

    @cached_property
    def turn_end(self) -> TurnEnd:
        """How the template ends the agent's turn."""
        return TurnEnd(self)

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end the agent's turn: the end of text, and the template's end of turn.

        If the template writes none, the token of the next message's role ends a turn.
        """
        return self.turn_end.stop_ids

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Text that ends the turn, if the template's end of turn is not a single token."""
        return self.turn_end.stop_strings

    def text_after_answer(
        self, messages: Sequence[Message], *, generation_prompt: bool = True
    ) -> str:
        """Return what the template writes after an answer that these messages follow."""
        conversation = [QUESTION, ANSWERED, *messages]
        text = self._renderer.render(conversation, generation_prompt=generation_prompt)
        return text[_end_of_answer(text) :]

    @cached_property
    def _leading_space(self) -> str:
        """White space that the template writes between the generation prompt and the answer."""
        try:
            prompt = self._renderer.render([QUESTION])
            text = self._renderer.render([QUESTION, ANSWERED], generation_prompt=False)
            start = _end_of_answer(text) - len(ANSWER)
        except ConfigError:
            return ""
        between = text[len(prompt) : start] if text.startswith(prompt) else ""
        return between if between.isspace() else ""

    def _num_closed(self, ids: Sequence[int], turn: Sequence[int]) -> int:
        """Return how many of the tokens after an answer were sampled in the turn itself."""
        if not turn:
            return 0
        last = turn[-1]
        end = self.turn_end
        if last in end.next_role_ids:  # the agent sampled the role of the next message
            return int(bool(ids) and ids[0] == last)
        if last in end.stop_ids:  # any of them is enough
            at = next((n for n, i in enumerate(ids) if i in self.control.ids), None)
            return 0 if at is None or ids[at] not in end.closers else at + 1
        if not end.stop_strings:
            return 0
        closing = end.closing_ids
        if list(ids[: len(closing)]) != closing:
            return 0
        lengths = range(min(len(closing), len(turn)), 0, -1)
        return next((n for n in lengths if list(turn[-n:]) == closing[:n]), 0)

    def with_template_ends(self, ids: Sequence[int], turns: Sequence[tuple[int, int]]) -> list[int]:
        """Return the stream with the template's end of turn at each turn but the last."""
        template = self.turn_end
        written = [] if template.end_id is None else [template.end_id]
        ended = []
        done = 0
        for _, end in turns[:-1]:
            if ids[end - 1] in template.closers:
                ended += [*ids[done : end - 1], *written]
                done = end
        return [*ended, *ids[done:]]


class TurnEnd:
    """How a chat template ends the agent's turn.

    Three renderings show it: what follows an answer that is the last message (`final`), that a
    user message follows (`following`), and that another turn of the agent follows (`again`). Most
    templates write the same end in all of them. Some end only the last answer with the end of text
    (Phi), some end the last answer differently from earlier ones (harmony), some do not end it at
    all (GLM).
    """

    def __init__(self, chat: ChatFormat) -> None:
        control = chat.control
        final = chat.text_after_answer([], generation_prompt=False)
        try:
            following = chat.text_after_answer([QUESTION])
        except ConfigError:  # a template of one exchange: another message is refused when it comes
            following = final
        final_ids, following_ids = chat.written_ids(final), chat.written_ids(following)
        final_id = control.first(final_ids)
        self.end_id: int | None = None
        """The token that ends an answer before another message."""
        if final_id is not None:
            try:
                again = control.first(chat.written_ids(chat.text_after_answer([])))
            except ConfigError:  # a template that wants turns to alternate
                again = None
            end_id = control.first(following_ids)
            self.end_id = end_id if end_id in (final_id, again) else None

        if following.startswith(final):
            closing = final
        elif self.end_id is None:
            closing = commonprefix([following, final])  # noqa: RUF071 - of characters
        else:
            before, name, _ = following.partition(control.names[self.end_id])
            closing = before + name
        self.closing_ids = chat.written_ids(closing)
        """The tokens between an answer and the next message."""
        self.next_role_ids: list[int] = []
        """Control tokens that start the next message, if nothing ends an answer (as in GLM)."""
        for role in () if closing else ("user", "tool"):
            try:
                text = chat.text_after_answer([{"role": role, "content": "q"}])
            except ConfigError:  # a template without tools
                continue
            self.next_role_ids += control.among(chat.written_ids(text)[:1])

        ends = end_ids(chat.tokenizer) | control.named(_KNOWN_ENDS)
        self.stop_ids = ends | ({*self.next_role_ids} if final_id is None else {final_id})
        is_token = final_id is not None or not closing
        self.stop_strings = () if is_token else (closing,)
        number = next((n for n, i in enumerate(final_ids, 1) if i in self.stop_ids), len(final_ids))
        eos = chat.tokenizer.eos_token_id
        self.sampled_ids = (
            final_ids[:number] or self.next_role_ids[:1] or ([] if eos is None else [eos])
        )
        """The tokens that the agent itself samples at the end of a turn."""
        self.boundary_ids = self.stop_ids  # all, in harmony: its turns have several messages
        """Control tokens that end a turn or start another one; a turn must not contain them."""
        if self.end_id in self.stop_ids:
            self.boundary_ids |= {*control.among(following_ids)}
        self.closers = self.stop_ids.difference(self.next_role_ids)
        """Tokens with which the template or the agent ends a turn; not those of the next role."""
        if self.end_id is not None:
            self.closers |= {self.end_id}


def _end_of_answer(text: str) -> int:
    if ANSWER not in text:
        raise ConfigError(
            "the chat template does not write the answers of the assistant, so it is not made for "
            "several turns. Give another one: ChatFormat(tokenizer, template)."
        )
    return text.index(ANSWER) + len(ANSWER)


def with_thought(template: str, answer: str, thought: str) -> Message:
    """Return an answer and the thought before it as the message that a template takes."""
    message = {"role": "assistant", "content": answer}
    if not thought:
        return message
    if "reasoning_content" in template:
        return {**message, "reasoning_content": thought}
    return {**message, "content": f"<think>\n{thought}\n</think>\n\n{answer}"}
