"""Which characters of a rendered conversation the template wrote, and which it only quotes.

Everything that is passed to a template (contents, names, tool definitions, arguments of calls)
comes from users, environments, datasets or servers. It is marked before rendering, and the marks
are removed from the output, which shows where each quoted text ended up. The marks are long random
numbers, which cannot be guessed: digits survive everything that templates do to texts, such as
JSON in ASCII, `repr`, and capitals. Each pair of marks has a number of its own, so that the half of
a text that a template cut away is not taken for that of another.
"""

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

Span: TypeAlias = tuple[int, int]
Change: TypeAlias = Callable[[str], str]
FindSpans: TypeAlias = Callable[[str], Sequence[Span]]
"""Returns the spans of a text that spell control tokens."""

_NUMBER = str(secrets.randbelow(10**24)).zfill(24)
_MARKS = re.compile(rf"4{_NUMBER}([12])(\d{{7}})")
# Templates compare roles and keys with these words; all other strings they only write.
ROLES = frozenset((
    "system", "developer", "user", "assistant", "model", "tool", "function", "ipython",
    "observation", "environment", "tool_results", "tool_response",
))  # fmt: skip
_WORDS = frozenset((
    "type", "function", "name", "description", "parameters", "properties", "required",
    "items", "enum", "default", "nullable", "format", "title", "strict", "anyOf", "oneOf",
    "allOf", "additionalProperties", "return", "returns", "arguments", "id", "content",
    "object", "string", "number", "integer", "boolean", "array", "null", "text", "image",
))  # fmt: skip
# Generated ids of tool calls; some templates check their length.
_CALL_ID = re.compile(r"call\d{5}")


@dataclass(frozen=True, slots=True)
class RenderedText:
    """A rendering, and the spans of it that the template did not write.

    >>> RenderedText("<s>user: hello</s>", ((9, 14),)).after(3)
    RenderedText(text='user: hello</s>', spans=((6, 11),))
    """

    text: str
    spans: tuple[Span, ...] = ()

    def after(self, start: int) -> Self:
        """Return the part from `start` on."""
        kept = [(max(a, start) - start, b - start) for a, b in self.spans if b > start]
        return type(self)(self.text[start:], tuple(kept))


def change_messages(messages: Sequence[Mapping[str, Any]], change: Change) -> list[dict[str, Any]]:
    """Return messages with every string changed except field names and known roles."""
    return [
        {
            key if key.isidentifier() else change(key): item
            if key == "role" and isinstance(item, str) and item in ROLES
            else _walk(item, change)
            for key, item in message.items()
        }
        for message in messages
    ]


def change_tools(tools: Sequence[Mapping[str, Any]] | None, change: Change) -> list[Any] | None:
    """Return tool definitions with every string changed, also the names of parameters."""
    return [_walk(tool, change) for tool in tools] if tools else None


def break_names(find_spans: FindSpans, text: str) -> str:
    """Put a space into each control token that a text spells, where marks fail."""
    for start, _ in reversed(find_spans(text)):
        text = f"{text[: start + 1]} {text[start + 1 :]}"
    return text


class Marks:
    """Marks in the texts of one rendering, and what stood between each pair of them.

    `find_spans` returns the spans of a text that spell control tokens.
    """

    def __init__(self, find_spans: FindSpans) -> None:
        self._find_spans = find_spans
        self._texts: list[str] = []

    def mark_whole(self, text: str) -> str:
        """Mark a string, inside its outer white space, which templates trim."""
        core = text.strip()
        if not core or core in _WORDS or _CALL_ID.fullmatch(core):
            return text
        start = text.index(core[0])
        return self._mark(text, start, start + len(core))

    def mark_names(self, text: str) -> str:
        """Mark only what spells a control token, for templates that split.

        White space around a name is marked with it: after a split at `</think>` templates strip it.
        """
        for start, end in reversed(self._find_spans(text)):
            before, after = text[:start].rstrip(), text[end:].lstrip()
            first = len(before) if before else start
            last = len(text) - len(after) if after else end
            text = self._mark(text, first, last)
        return text

    def _mark(self, text: str, start: int, end: int) -> str:
        number = f"{len(self._texts) % 10**7:07}"
        self._texts.append(text[start:end])
        opening, closing = f"4{_NUMBER}1{number}", f"4{_NUMBER}2{number}"
        return f"{text[:start]}{opening}{text[start:end]}{closing}{text[end:]}"

    def read(self, text: str) -> tuple[RenderedText, bool]:
        """Return the rendering without the marks, and whether each pair encloses its text."""
        pieces: list[str] = []
        pairs: list[tuple[int, int, int]] = []
        opened: dict[int, int] = {}
        length = 0
        at = 0
        is_whole = True
        for mark in _MARKS.finditer(text):
            pieces.append(text[at : mark.start()])
            length += mark.start() - at
            at = mark.end()
            number = int(mark[2])
            if mark[1] == "1":
                is_whole = is_whole and not opened
                opened[number] = length
            elif number in opened:
                pairs.append((opened.pop(number), length, number))
            else:
                is_whole = False
        plain = "".join([*pieces, text[at:]])
        # A template that takes a text apart may write control tokens of its own between the halves.
        spans = [(a, b) for a, b, number in sorted(pairs) if self._is_quoted(plain[a:b], number)]
        is_whole = is_whole and not opened and len(spans) == len(pairs)
        return RenderedText(plain, tuple(spans)), is_whole

    def _is_quoted(self, written: str, number: int) -> bool:
        text = self._texts[number]
        return written == text or len(self._find_spans(written)) <= len(self._find_spans(text))


def _walk(value: Any, change: Change) -> Any:
    """Return the same data with every string in it changed, also the keys."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_walk(key, change): _walk(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_walk(item, change) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return change(str(value))  # an object has methods, which are not for a template
