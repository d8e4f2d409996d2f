"""Renders chat templates within limits, and finds out which parts of the output are quoted."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeAlias

from turnwise.chat.encoding import Encoder
from turnwise.chat.ownership import (
    Change,
    RenderedText,
    break_names,
    change_messages,
    change_tools,
    make_inert,
    mark_names,
    mark_whole,
    read_marks,
)
from turnwise.errors import ConfigError

Message: TypeAlias = Mapping[str, Any]
"""`{"role": "user", "content": "Hello."}`; roles are system, user, assistant and tool."""
Tools: TypeAlias = Sequence[Mapping[str, Any]] | None

# A conversation of a thousand messages takes less than a hundred thousand lines.
_MOST_LINES = 500_000
_MOST_SECONDS = 60.0


def template_text(tokenizer: Any, own: str | None) -> str:
    """Return the text of a tokenizer's chat template, or `own`."""
    text = tokenizer.chat_template if own is None else own
    if isinstance(text, Mapping):  # some tokenizers have several, by name
        text = text.get("tool_use") or text.get("default") or ""
    return str(text)


class Renderer:
    """Renders with a tokenizer's chat template, or with `own` instead of it.

    `template` is the text of either; `encoder` finds the control tokens in texts and renderings.
    """

    def __init__(self, tokenizer: Any, own: str | None, template: str, encoder: Encoder) -> None:
        self.variables: dict[str, bool] = {}
        """What the template gets besides messages and tools."""
        self._tokenizer = tokenizer
        self._own = own
        self._template = template
        self._encoder = encoder

    def render(
        self, messages: Sequence[Message], tools: Tools = None, generation_prompt: bool = True
    ) -> str:
        """Return the conversation as the template writes it."""
        return self._render(self.completed(messages), tools, generation_prompt)

    def render_with_spans(
        self, messages: Sequence[Message], tools: Tools = None, before: Sequence[Message] = ()
    ) -> RenderedText:
        """Render, and find the spans that the template did not write.

        `before` are earlier messages of ours, whose texts are harmless.
        """
        completed = self.completed(messages)
        _check_depth(completed, tools)

        def render(change: Change | None) -> str:
            if change is None:
                return self._render([*before, *completed], tools, generation_prompt=True)
            changed = [*before, *change_messages(completed, change)]
            return self._render(changed, change_tools(tools, change), generation_prompt=True)

        plain = render(None)
        marked, is_whole = _read(render, mark_whole)
        if is_whole and marked.text == plain:
            return marked
        return self._without_forgeries(render, plain, marked if is_whole else None)

    def _without_forgeries(
        self, render: Callable[[Change | None], str], plain: str, marked: RenderedText | None
    ) -> RenderedText:
        """Render for templates that inspect the texts and behave differently when they are marked.

        The output for harmless texts shows which control tokens the template writes itself.
        """
        own = self._encoder.control_tokens(_read(render, make_inert)[0])
        for found in (RenderedText(plain), marked):
            if found is not None and self._encoder.control_tokens(found) == own:
                return found
        found, _ = _read(render, mark_names(self._encoder.control_spans))
        if found.text == plain:
            return found
        return RenderedText(render(break_names(self._encoder.control_spans)))

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
                    filled["tool_call_id"] = self._call_id(message, num_results)
                num_results += 1
            completed.append(filled)
        return completed

    def _call_id(self, message: Message, number: int) -> str:
        if "## Return of" in self._template:  # Kimi-K2: the function, and its place among all calls
            return f"functions.{message.get('name') or 'tool'}:{number}"
        return f"call{number % 100_000:05}"  # Mistral accepts only nine letters or digits

    def _render(self, messages: Sequence[Message], tools: Tools, generation_prompt: bool) -> str:
        from turnwise.chat.sandbox import TooLarge, bound_templates  # as late as transformers

        bound_templates()
        try:
            with _limited():
                text = self._apply(messages, tools, generation_prompt)
        except TooLarge as error:
            raise ConfigError(
                f"the chat template computes too much: {error}. Give another with "
                "ChatFormat(tokenizer, template)."
            ) from error
        except _TooLong as error:
            raise ConfigError(
                f"the chat template did not come to an end: {error}. It probably loops; "
                "give another with ChatFormat(tokenizer, template)."
            ) from error
        except Exception as error:  # a template may raise anything
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise ConfigError(
                f"the chat template does not take messages of the roles {roles}: {error}"
            ) from error
        return str(text)

    def _apply(self, messages: Sequence[Message], tools: Tools, generation_prompt: bool) -> Any:
        def apply(tools: list[Any] | None) -> Any:
            return self._tokenizer.apply_chat_template(
                list(messages),
                tools=tools,
                chat_template=self._own,
                add_generation_prompt=generation_prompt,
                tokenize=False,
                **self.variables,
            )

        if tools:
            return apply(list(tools))
        try:
            return apply(None)
        except TypeError:  # a template that iterates over tools unconditionally
            return apply([])


def _check_depth(messages: Sequence[Message], tools: Tools) -> None:
    change_messages(messages, str)
    change_tools(tools, str)


def _read(render: Callable[[Change | None], str], change: Change) -> tuple[RenderedText, bool]:
    """Render changed texts and read the marks; (empty, False) if the template refuses them."""
    try:
        return read_marks(render(change))
    except ConfigError:
        return RenderedText(""), False


class _TooLong(Exception):
    """A template ran for too many lines, or for too long."""


@contextmanager
def _limited() -> Iterator[None]:
    """Stop a template that loops, in the calling thread.

    A trace function counts the lines of the template that run. The count is the same on every
    machine; the time limit is for single lines that take very long.
    """
    num_left, deadline = _MOST_LINES, time.monotonic() + _MOST_SECONDS

    def count_line(_frame: FrameType, _event: str, _argument: Any) -> Any:
        nonlocal num_left
        num_left -= 1
        if num_left < 0:
            raise _TooLong(f"it ran more than {_MOST_LINES:,} lines")
        if num_left % 1024 == 0 and time.monotonic() > deadline:
            raise _TooLong(f"it ran for more than {_MOST_SECONDS:g} s")
        return count_line

    def watch(frame: FrameType, _event: str, _argument: Any) -> Any:
        return count_line if frame.f_code.co_filename == "<template>" else None

    previous = sys.gettrace()
    sys.settrace(watch)
    try:
        yield
    finally:
        sys.settrace(previous)
