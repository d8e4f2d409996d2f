"""Arguments and names in formats that write texts as they are and everything else as JSON.

The rule that makes it exact: what reads as JSON is JSON, all else is a text; a text that would
be misread (`5`, `null`, one with the format's own tags) is written as a JSON string, in quotes.
Where the definition of the tool says that an argument is a text, it is one: `5` needs no quotes,
and quotes are part of it unless it could not have been written without them. What the definition
says may be text or something else (`null`, a number) is that, if it reads so.

Names of tools and arguments that stand outside of JSON follow the same idea: one that could be
misread is written as a JSON string, in quotes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from turnwise.errors import ToolError
from turnwise.tools.parsers.json_text import check_name, read_json, skip_space, write_json
from turnwise.tools.types import ToolCall, ToolDefinition

_SAFE = re.compile(r"[\w./-]++")
# Markdown before and after a name is not part of it.
_BARE = re.compile(r'[ \t*]*+`?+([^<>\[{\n"`]*+)')
_AFTER = " \t\r*"

_NOT_JSON = object()
_JSON_START = frozenset('{["-0123456789tfn')


class Values:
    """Reads and writes the arguments of calls; `tags` matches what plain text must not have."""

    def __init__(self, definitions: Iterable[ToolDefinition], tags: re.Pattern[str]) -> None:
        self._tags = tags
        self._types = {
            (tool.name, argument): _types(schema, tool.parameters)
            for tool in definitions
            for argument, schema in tool.parameters.get("properties", {}).items()
        }

    def read(self, text: str, tool: str, argument: str) -> Any:
        """Returns the value of a text."""
        return self._read(text, self._types.get((tool, argument)))

    def write(self, value: Any, tool: str, argument: str) -> str:
        """Returns a text that reads back as the value."""
        types = self._types.get((tool, argument))
        if isinstance(value, str) and not self._needs_quotes(value, types):
            return value
        text = write_json(value, tool).replace("<", "\\u003c")
        if isinstance(value, str) or types is None or "string" not in types:
            return text
        if not _type_of(value) & types:
            raise ToolError(
                f"the argument {argument!r} of {tool!r} is defined as {' or '.join(sorted(types))}"
                f", so {text[:40]} cannot be written. Give it a value that fits."
            )
        return text

    def _read(self, text: str, types: frozenset[str] | None) -> Any:
        value = _json_or_not(text)
        if value is _NOT_JSON:
            return text
        if types is None or "string" not in types:
            return value
        if isinstance(value, str):
            return value if self._needs_quotes(value, types) else text
        return value if _type_of(value) & types else text

    def _needs_quotes(self, text: str, types: frozenset[str] | None) -> bool:
        return self._tags.search(text) is not None or self._read(text, types) != text


def _json_or_not(text: str) -> Any:
    start = skip_space(text, 0)
    if start == len(text) or text[start] not in _JSON_START:
        return _NOT_JSON
    value, end, problem = read_json(text, start)
    return value if problem is None and skip_space(text, end) == len(text) else _NOT_JSON


def _type_of(value: Any) -> frozenset[str]:
    """Returns the type names of JSON schema for a value that is no text."""
    if isinstance(value, bool):
        return frozenset({"boolean"})
    if isinstance(value, int):
        return frozenset({"integer", "number"})
    if value is None:
        return frozenset({"null"})
    names = {float: "number", dict: "object"}
    return frozenset({names.get(type(value), "array")})


def _types(schema: Any, root: Mapping[str, Any], depth: int = 4) -> frozenset[str] | None:
    """Returns the types that a schema allows; None if it has none, or is nested deeply."""
    if not isinstance(schema, Mapping) or depth == 0:
        return None
    reference = schema.get("$ref")
    if isinstance(reference, str):
        named = root.get("$defs", {}).get(reference.removeprefix("#/$defs/"))
        return _types(named, root, depth - 1)
    found: frozenset[str] = frozenset()
    for option in schema.get("anyOf") or schema.get("oneOf") or ():
        types = _types(option, root, depth - 1)
        if types is None:
            return None
        found |= types
    kinds = schema.get("type", ())
    if not kinds and all(isinstance(option, str) for option in schema.get("enum", (None,))):
        kinds = "string"
    return found | frozenset({kinds} if isinstance(kinds, str) else kinds) or None


def write_name(call: ToolCall) -> str:
    """Returns the call's name, in quotes if necessary."""
    return write_bare(check_name(call), call.name)


def write_bare(name: str, tool: str) -> str:
    return name if _SAFE.fullmatch(name) else write_json(name, tool)


def read_name(text: str, start: int) -> tuple[str, int]:
    """Returns the name at `start` and its end; empty if there is none."""
    found = _BARE.match(text, start)
    assert found is not None  # it matches the empty text too
    name, end = found.group(1).rstrip(_AFTER), found.end()
    if name or not text.startswith('"', end):
        return name, end
    value, end, problem = read_json(text, end)
    return (value if problem is None else ""), end
