"""Reads and writes the pieces of a call: JSON, names, and values as plain text.

Some formats write texts as they are and everything else as JSON. The rule that makes it exact: what
reads as JSON is JSON, all else is a text; a text that would be misread (`5`, `null`, one with the
format's own tags) is written as a JSON string, in quotes. Where the definition of the tool says
that an argument is a text, it is one: `5` needs no quotes, and quotes are part of it unless it
could not have been written without them. What the definition says may be text or something else
(`null`, a number) is that, if it reads so.

Names of tools and arguments that stand outside of JSON follow the same idea: one that could be
misread is written as a JSON string, in quotes.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from turnwise.errors import ToolError
from turnwise.tools.parsers.base import MAX_CALLS, Attempt, Malformed
from turnwise.tools.types import ToolCall, ToolDefinition

# Far under Python's recursion limit: the result must not depend on the caller's stack.
MAX_DEPTH = 100
INCOMPLETE = "the JSON ends before it is complete"

_ARGUMENT_KEYS = ("arguments", "parameters")
_FENCE = re.compile(r"\s*+(?:```(?:json|JSON)?+\s*+)?+")
_CLOSING_FENCE = re.compile(r"(?:\s*+```)?+")
_SPACE = re.compile(r"\s*+")
# These are escaped in strings of a call, or a parser would take the text before for a thought.
_THOUGHT_ENDS = (("</think>", "\\u003c/think>"), ("[/THINK]", "\\u005b/THINK]"))

_SAFE_NAME = re.compile(r"[\w./-]++")
# Markdown before and after a name is not part of it.
_BARE_NAME = re.compile(r'[ \t*]*+`?+([^<>\[{\n"`]*+)')
_AFTER_NAME = " \t\r*"
_JSON_START = frozenset('{["-0123456789tfn')


class _NotJSON(ValueError):
    """Python accepts it, but it is not JSON."""


def _refuse_constant(name: str) -> NoReturn:
    raise _NotJSON(f"{name} is not JSON")


def _read_float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise _NotJSON("a number is too large")
    return value


# Not strict: models put plain line breaks into strings.
_DECODER = json.JSONDecoder(strict=False, parse_constant=_refuse_constant, parse_float=_read_float)


def read_json(text: str, start: int) -> tuple[Any, int]:
    """Returns the value at `start` and its end; raises `Malformed` if there is none."""
    try:
        value, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        at = error.pos
        if error.msg.startswith("Unterminated string") or skip_space(text, at) == len(text):
            raise Malformed(INCOMPLETE, at) from None
        reason = f"the JSON is broken near {text[at : at + 12]!r}: {error.msg}"
        raise Malformed(reason, at) from None
    except _NotJSON as error:
        raise Malformed(str(error), len(text)) from None
    except ValueError:  # Python does not parse integers of this length
        raise Malformed("a number has too many digits", len(text)) from None
    except RecursionError:
        raise Malformed("the JSON is nested too deeply", len(text)) from None
    if text.count("{", start, end) + text.count("[", start, end) > MAX_DEPTH and _is_deep(value):
        raise Malformed("the JSON is nested too deeply", end)
    return value, end


def _is_deep(value: Any) -> bool:
    """Whether lists and objects are nested more than `MAX_DEPTH` deep."""
    level: list[Any] = [[value]]
    for _ in range(MAX_DEPTH + 1):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def write_json(value: Any, tool: str) -> str:
    """Returns one line of JSON that parses to the same value."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        if text.count("{") + text.count("[") > MAX_DEPTH and _is_deep(value):
            raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolError(
            f"the arguments of a call of {tool!r} cannot be written as JSON: {error}. "
            "Use str, int, finite float, bool, None, lists and dicts."
        ) from None
    for end, escaped in _THOUGHT_ENDS:
        text = text.replace(end, escaped)
    return text


def check_name(call: ToolCall) -> str:
    """Returns the call's name; raises an error if it is empty."""
    if not call.name:
        raise ToolError("a call without a name cannot be written. Give it the name of a tool.")
    return call.name


def call_from_object(value: dict[str, Any], name_keys: tuple[str, ...]) -> ToolCall | None:
    """Returns the call of an object, or None for other JSON; raises `Malformed` for a wrong one."""
    name_key = next((key for key in name_keys if key in value), None)
    argument_key = next((key for key in _ARGUMENT_KEYS if key in value), None)
    if name_key is None:
        if argument_key is None:
            return None
        raise Malformed(f'there is no "{name_keys[0]}" next to "{argument_key}"')
    schema = value.get("parameters")
    if "description" in value and isinstance(schema, dict) and schema.get("type") == "object":
        return None  # the definition of a tool, repeated
    if argument_key is None and not value.keys() <= {name_key, "type", "id"}:
        if name_key == "name":
            return None  # {"name": "Ann", "age": 3} is data; {"tool": ...} is meant as a call
        raise Malformed('the arguments must be inside "arguments"')
    name = value[name_key]
    if not isinstance(name, str) or not name:
        raise Malformed(f'"{name_key}" must be the name of a tool, got {_shorten(name)}')
    return _make_call(name, {} if argument_key is None else value[argument_key])


def read_call(text: str, position: int, name: str) -> Attempt:
    """Reads the arguments at `position` as those of a call of `name`."""
    value, end = read_json(text, position)
    return Attempt(end, [_make_call(name, value)])


def _make_call(name: str, arguments: Any) -> ToolCall:
    """Returns a call; its arguments may be a JSON string."""
    if arguments is None or arguments == "":
        return ToolCall(name)  # models write these for a tool without arguments
    if isinstance(arguments, str):
        start = skip_space(arguments, 0)
        try:
            value, end = read_json(arguments, start)
            if skip_space(arguments, end) == len(arguments):
                arguments = value
        except Malformed as error:
            if arguments.startswith("{", start):
                raise Malformed(f"in the arguments, {error}") from None
    if not isinstance(arguments, dict):
        raise Malformed(f"the arguments must be an object, got {_shorten(arguments)}")
    return ToolCall(name, arguments)


def calls_from_values(values: Iterable[Any], end: int, name_keys: tuple[str, ...]) -> Attempt:
    """Reads values that must all be calls, up to the first that is none."""
    attempt = Attempt(end)
    for value in values:
        try:
            call = call_from_object(value, name_keys) if isinstance(value, dict) else None
            if call is None:
                raise Malformed(f"expected a call, got {_shorten(value)}")
        except Malformed as error:
            attempt.problem = str(error)
            break
        attempt.calls.append(call)
        if len(attempt.calls) > MAX_CALLS:
            break
    return attempt


def read_calls(text: str, start: int, name_keys: tuple[str, ...]) -> Attempt:
    """Reads an object or a list at `start`, which must be calls; a code fence is skipped."""
    value, end = read_json(text, skip_fence(text, start))
    values = value if isinstance(value, list) else [value]
    return calls_from_values(values, skip_closing_fence(text, end), name_keys)


def _shorten(value: object) -> str:
    """Returns a value in a few characters, for a message."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = json.dumps(value[:40] if isinstance(value, str) else value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:37]}..."


def skip_fence(text: str, position: int) -> int:
    """Returns the position after white space and the start of a code fence."""
    return _after(_FENCE, text, position)


def skip_closing_fence(text: str, position: int) -> int:
    """Returns the position after the end of a code fence, if there is one."""
    return _after(_CLOSING_FENCE, text, position)


def skip_space(text: str, position: int) -> int:
    """Returns the position after white space."""
    return _after(_SPACE, text, position)


def skip_marker(text: str, position: int, marker: str) -> int:
    """Returns the position after white space and a marker, if the marker is there."""
    after = skip_space(text, position)
    return after + len(marker) if text.startswith(marker, after) else position


def expect(text: str, position: int, marker: str) -> int:
    """Returns the position after the marker; raises `Malformed` if it is not there."""
    if not text.startswith(marker, position):
        raise Malformed(f"there is no {marker} before {text[position : position + 20]!r}")
    return position + len(marker)


def _after(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.match(text, position)
    assert match is not None  # these patterns match the empty text too
    return match.end()


def write_name(call: ToolCall) -> str:
    """Returns the call's name, in quotes if necessary."""
    return write_bare(check_name(call), call.name)


def write_bare(name: str, tool: str) -> str:
    """Returns the name of a tool or an argument, in quotes if necessary."""
    return name if _SAFE_NAME.fullmatch(name) else write_json(name, tool)


def read_name(text: str, start: int, bare: re.Pattern[str] = _BARE_NAME) -> tuple[str, int]:
    """Returns the name at `start` and its end; empty if there is none."""
    match = bare.match(text, start)
    assert match is not None  # it matches the empty text too
    name, end = match.group(1).rstrip(_AFTER_NAME), match.end()
    if name or not text.startswith('"', end):
        return name, end
    try:
        return read_json(text, end)
    except Malformed as error:
        return "", error.end


class Values:
    """Reads and writes the arguments of calls; `tags` matches what plain text must not have."""

    def __init__(self, definitions: Iterable[ToolDefinition], tags: re.Pattern[str]) -> None:
        self._tags = tags
        self._types = {
            (tool.name, argument): _schema_types(schema, tool.parameters)
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
        if not _TYPES.get(type(value), _TYPES[list]) & types:
            raise ToolError(
                f"the argument {argument!r} of {tool!r} is defined as {' or '.join(sorted(types))}"
                f", so {text[:40]} cannot be written. Give it a value that fits."
            )
        return text

    def _read(self, text: str, types: frozenset[str] | None) -> Any:
        start = skip_space(text, 0)
        if start == len(text) or text[start] not in _JSON_START:
            return text
        try:
            value, end = read_json(text, start)
        except Malformed:
            return text
        if skip_space(text, end) < len(text):
            return text
        if types is None or "string" not in types:
            return value
        if isinstance(value, str):
            return value if self._needs_quotes(value, types) else text
        return value if _TYPES.get(type(value), _TYPES[list]) & types else text

    def _needs_quotes(self, text: str, types: frozenset[str] | None) -> bool:
        return self._tags.search(text) is not None or self._read(text, types) != text


_TYPES: dict[type, frozenset[str]] = {
    bool: frozenset({"boolean"}),
    int: frozenset({"integer", "number"}),
    float: frozenset({"number"}),
    dict: frozenset({"object"}),
    list: frozenset({"array"}),
    type(None): frozenset({"null"}),
}
"""The type names of JSON schema for values that are no text."""


def _schema_types(schema: Any, root: Mapping[str, Any], depth: int = 4) -> frozenset[str] | None:
    """Returns the types that a schema allows; None if it has none, or is nested deeply."""
    if not isinstance(schema, Mapping) or depth == 0:
        return None
    reference = schema.get("$ref")
    if isinstance(reference, str):
        named = root.get("$defs", {}).get(reference.removeprefix("#/$defs/"))
        return _schema_types(named, root, depth - 1)
    allowed: frozenset[str] = frozenset()
    for option in schema.get("anyOf") or schema.get("oneOf") or ():
        types = _schema_types(option, root, depth - 1)
        if types is None:
            return None
        allowed |= types
    kinds = schema.get("type", ())
    if not kinds and all(isinstance(option, str) for option in schema.get("enum", (None,))):
        kinds = "string"
    return allowed | frozenset({kinds} if isinstance(kinds, str) else kinds) or None
