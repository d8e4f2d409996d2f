"""Renders chat templates, and finds out which parts of the output are quoted."""

import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from turnwise.chat.encoding import Encoder
from turnwise.chat.ownership import (
    Change,
    Marks,
    RenderedText,
    break_names,
    change_messages,
    change_tools,
)
from turnwise.errors import ConfigError

Message: TypeAlias = Mapping[str, Any]
"""`{"role": "user", "content": "Hello."}`; roles are system, user, assistant and tool."""
Tools: TypeAlias = Sequence[Mapping[str, Any]] | None

# Names under which clients send a thought; transformers gives templates the first two.
_THOUGHTS = ("reasoning_content", "thinking", "reasoning")


class Renderer:
    """Renders with a tokenizer's chat template, or with `given` instead of it.

    `template` is the text of either; `encoder` finds the control tokens in texts and renderings.
    """

    def __init__(self, tokenizer: Any, given: str | None, template: str, encoder: Encoder) -> None:
        self.variables: dict[str, bool] = {}
        """What the template gets besides messages and tools."""
        self._tokenizer = tokenizer
        self._given = given
        self._template = template
        self._encoder = encoder

    def render(
        self, messages: Sequence[Message], tools: Tools = None, generation_prompt: bool = True
    ) -> str:
        """Return the conversation as the template writes it."""
        plain = change_messages(self.completed(messages), str)
        return self._render(plain, change_tools(tools, str), generation_prompt)

    def render_with_spans(
        self, messages: Sequence[Message], tools: Tools = None, before: Sequence[Message] = ()
    ) -> RenderedText:
        """Render, and find the spans that the template did not write.

        `before` are earlier messages of ours, whose texts are harmless.
        """
        completed = self.completed(messages)

        def render(change: Change) -> str:
            changed = [*before, *change_messages(completed, change)]
            return self._render(changed, change_tools(tools, change), generation_prompt=True)

        plain = render(str)
        find = self._encoder.control_spans
        # Some templates inspect the texts, and write something else when they are marked.
        for mark in (Marks.mark_whole, Marks.mark_names):
            marks = Marks(find)
            with contextlib.suppress(ConfigError):  # or refuse them
                rendered, is_whole = marks.read(render(partial(mark, marks)))
                if rendered.text == plain and (is_whole or mark is Marks.mark_names):
                    return rendered
        return RenderedText(render(partial(break_names, find)))

    def completed(
        self, messages: Sequence[Message], history: Sequence[Message] = ()
    ) -> list[Message]:
        """Return messages with contents as strings, and call ids for tool results if needed."""
        completed: list[Message] = []
        num_results = sum(message.get("role") == "tool" for message in history)
        for message in messages:
            content = message.get("content")
            filled = {**message, "content": "" if content is None else str(content)}
            if message.get("role") == "tool":
                if "tool_call_id" in self._template and not message.get("tool_call_id"):
                    # Mistral accepts only nine letters or digits; Kimi-K2's ids are the function
                    # and its place among all calls.
                    name = f"call{num_results % 100_000:05}"
                    if "## Return of" in self._template:
                        name = f"functions.{message.get('name') or 'tool'}:{num_results}"
                    filled["tool_call_id"] = name
                num_results += 1
            thought = next((message[k] for k in _THOUGHTS if message.get(k) is not None), None)
            if thought is not None:
                filled = {"thinking": thought, **filled, "reasoning_content": thought}
            completed.append(filled)
        return completed

    def _render(
        self, messages: Sequence[Message], tools: list[Any] | None, generation_prompt: bool
    ) -> str:
        try:
            apply = partial(
                self._tokenizer.apply_chat_template,
                list(messages),
                chat_template=self._given,
                add_generation_prompt=generation_prompt,
                tokenize=False,
                **self.variables,
            )
            try:
                return str(apply(tools=tools))
            except TypeError:  # a template that iterates over tools unconditionally
                if tools:
                    raise
                return str(apply(tools=[]))
        except Exception as error:  # a template may raise anything
            roles = ", ".join(str(message.get("role")) for message in messages[:20])
            raise ConfigError(
                f"the chat template does not take messages of the roles {roles}: {error}"
            ) from error
