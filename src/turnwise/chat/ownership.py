"""Which characters of a rendered conversation the template wrote, and which it only quotes.

Everything that is passed to a template (contents, names, tool definitions, arguments of calls)
comes from users, environments, datasets or servers. It is marked before rendering, and the marks
are removed from the output, which shows where each quoted text ended up. The marks are long random
numbers, which cannot be guessed: digits survive everything that templates do to texts, such as
JSON in ASCII, `repr`, and capitals.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from turnwise.errors import ConfigError

Span: TypeAlias = tuple[int, int]
Change: TypeAlias = Callable[[str], str]
FindSpans: TypeAlias = Callable[[str], Sequence[Span]]
"""Returns the spans of a text that spell control tokens."""

_NUMBER = str(secrets.randbelow(10**24)).zfill(24)
_OPEN, _CLOSE = f"4{_NUMBER}1", f"4{_NUMBER}2"
_MARKS = re.compile(f"({_OPEN}|{_CLOSE})")
_MOST_LEVELS = 100
# Templates compare roles and keys with these words; all other strings they only write.
ROLES = frozenset(
    {
        *("system", "developer", "user", "assistant", "model", "tool", "function", "ipython"),
        *("observation", "environment", "tool_results", "tool_response"),
    }
)
_WORDS = frozenset(
    {
        *("type", "function", "name", "description", "parameters", "properties", "required"),
        *("items", "enum", "default", "nullable", "format", "title", "strict", "anyOf", "oneOf"),
        *("allOf", "additionalProperties", "return", "returns", "arguments", "id", "content"),
        *("object", "string", "number", "integer", "boolean", "array", "null", "text", "image"),
    }
)
# Generated ids of tool calls; some templates check their length.
_CALL_ID = re.compile(r"call\d{5}")


@dataclass(frozen=True, slots=True)
class RenderedText:
    """A rendering, and the spans of it that the template did not write.

    >>> RenderedText("<s>user: hello</s>", ((9, 14),)).after(3)
    RenderedText(text='user: hello</s>', spans=((6, 11),), controls=None)
    """

    text: str
    spans: tuple[Span, ...] = ()
    controls: tuple[int, ...] | None = None
    """The control tokens that the template itself writes, if they are known beforehand."""

    def after(self, start: int) -> RenderedText:
        """Return the part from `start` on."""
        kept = [(max(a, start) - start, b - start) for a, b in self.spans if b > start]
        return RenderedText(self.text[start:], tuple(kept), self.controls)


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


def mark_whole(text: str) -> str:
    """Mark a whole string, inside its surrounding white space, which templates trim."""
    core = text.strip()
    if not core or core in _WORDS or _CALL_ID.fullmatch(core):
        return text
    before, after = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
    return f"{before}{_OPEN}{core}{_CLOSE}{after}"


def make_inert(text: str) -> str:
    """Return a text of the same shape that spells no control token."""
    return text if text.strip() in _WORDS else re.sub(r"\S", "x", text)


def mark_names(find_spans: FindSpans) -> Change:
    """Return a change that marks only what spells a control token, for templates that split."""

    def change(text: str) -> str:
        pieces, at = [], 0
        for start, end in find_spans(text):
            pieces += [text[at:start], _OPEN, text[start:end], _CLOSE]
            at = end
        return "".join([*pieces, text[at:]])

    return change


def break_names(find_spans: FindSpans) -> Change:
    """Return a change that puts a space into what spells a control token, if marks fail."""

    def change(text: str) -> str:
        for start, _ in reversed(find_spans(text)):
            text = f"{text[: start + 1]} {text[start + 1 :]}"
        return text

    return change


def read_marks(text: str) -> tuple[RenderedText, bool]:
    """Return the rendering without the marks, and whether each mark has its other half."""
    pieces: list[str] = []
    spans: list[Span] = []
    length, opened, is_whole = 0, None, True
    for piece in _MARKS.split(text):
        if piece == _OPEN:
            is_whole = is_whole and opened is None
            opened = length
        elif piece == _CLOSE:
            is_whole = is_whole and opened is not None
            if opened is not None:
                spans.append((opened, length))
            opened = None
        else:
            pieces.append(piece)
            length += len(piece)
    return RenderedText("".join(pieces), tuple(spans)), is_whole and opened is None


def _walk(value: Any, change: Change, depth: int = 0) -> Any:
    """Return the same data with every string in it changed, also the keys."""
    if isinstance(value, str):
        return change(value)
    if depth > _MOST_LEVELS and isinstance(value, Mapping | list | tuple):
        raise ConfigError(
            f"a message or tool definition is nested more than {_MOST_LEVELS} levels deep. "
            "Leave the tool out, or flatten its parameters."
        )
    if isinstance(value, Mapping):
        return {_walk(k, change): _walk(item, change, depth + 1) for k, item in value.items()}
    if isinstance(value, list | tuple):
        return [_walk(item, change, depth + 1) for item in value]
    return value
