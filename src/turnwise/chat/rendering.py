"""Chat templates as a tokenizer renders them, with limits, and with what they quote marked."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from types import FrameType
from typing import Any, TypeAlias

from turnwise.chat.ownership import (
    Change,
    OwnedText,
    Places,
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


class Renderer:
    """A tokenizer's chat template; `own` replaces it.

    `places` finds control tokens in a text, `controls` gives those of a rendering's encoding.
    """

    def __init__(
        self,
        tokenizer: Any,
        own: str | None,
        places: Places,
        controls: Callable[[OwnedText], tuple[int, ...]],
    ) -> None:
        self._tokenizer = tokenizer
        self._own = own
        self._places = places
        self._controls = controls

    @cached_property
    def template(self) -> str:
        """The template's text."""
        own = self._tokenizer.chat_template if self._own is None else self._own
        if isinstance(own, Mapping):  # several by name, as some tokenizers have them
            own = own.get("tool_use") or own.get("default") or ""
        return str(own)

    def render(
        self, messages: Sequence[Message], tools: Tools = None, generation_prompt: bool = True
    ) -> str:
        """The conversation as the template writes it."""
        return self._render(self.completed(messages), tools, generation_prompt)

    def render_owned(
        self, messages: Sequence[Message], tools: Tools = None, before: Sequence[Message] = ()
    ) -> OwnedText:
        """The same, knowing which parts the template did not write; `before` is written by us."""
        told = self.completed(messages)
        _check_depth(told, tools)

        def render(change: Change | None) -> str:
            if change is None:
                return self._render([*before, *told], tools, generation_prompt=True)
            changed = [*before, *change_messages(told, change)]
            return self._render(changed, change_tools(tools, change), generation_prompt=True)

        plain = render(None)
        marked, is_whole = _read(render, mark_whole)
        if is_whole and marked.text == plain:
            return marked
        return self._without_forgeries(render, plain, marked if is_whole else None)

    def _without_forgeries(
        self, render: Callable[[Change | None], str], plain: str, marked: OwnedText | None
    ) -> OwnedText:
        """For templates that look into the texts, and do other things where they see marks.

        What they write for harmless texts tells how many control tokens are their own.
        """
        own = self._controls(_read(render, make_inert)[0])
        for found in (OwnedText(plain), marked):
            if found is not None and self._controls(found) == own:
                return found
        found, _ = _read(render, mark_names(self._places))
        if found.text == plain:
            return found
        return OwnedText(render(break_names(self._places)))

    def completed(
        self, messages: Sequence[Message], history: Sequence[Message] = ()
    ) -> list[Message]:
        """Contents as texts, and an id of its call for each tool result if the template asks."""
        completed: list[Message] = []
        num_results = sum(message.get("role") == "tool" for message in history)
        for message in messages:
            content = message.get("content")
            filled = {**message, "content": "" if content is None else str(content)}
            if message.get("role") == "tool":
                if self.needs_call_ids and not message.get("tool_call_id"):
                    filled["tool_call_id"] = self._call_id(message, num_results)
                num_results += 1
            completed.append(filled)
        return completed

    @cached_property
    def needs_call_ids(self) -> bool:
        """Whether the template writes the ids of tool calls beside their results."""
        return "tool_call_id" in self.template

    def _call_id(self, message: Message, number: int) -> str:
        if "## Return of" in self.template:  # Kimi-K2: the function, and its place among all calls
            return f"functions.{message.get('name') or 'tool'}:{number}"
        return f"call{number % 100_000:05}"  # Mistral takes nine letters or digits, no other ids

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
        except Exception as error:  # whatever a template raises, it is about these messages
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
            )

        if tools:
            return apply(list(tools))
        try:
            return apply(None)
        except TypeError:  # a template that is made for tools, and goes through a list of them
            return apply([])


def _check_depth(messages: Sequence[Message], tools: Tools) -> None:
    change_messages(messages, str)
    change_tools(tools, str)


def _read(render: Callable[[Change | None], str], change: Change) -> tuple[OwnedText, bool]:
    """What is written for changed texts; nothing, and not whole, if the template refuses them."""
    try:
        return read_marks(render(change))
    except ConfigError:
        return OwnedText(""), False


class _TooLong(Exception):
    """A template ran for too many lines, or for too long."""


@contextmanager
def _limited() -> Iterator[None]:
    """Stop a template that loops.

    A thread cannot be stopped from outside, but it can count the lines of the template that it
    runs. The count is the same on every machine; the seconds are for lines that take very long.
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
