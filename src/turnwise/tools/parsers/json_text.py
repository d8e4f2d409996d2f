"""Parses the JSON that models write, with reasons for failures, and turns it into calls."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any, NoReturn

from turnwise.errors import ToolError
from turnwise.tools.parsers.base import MAX_CALLS, Attempt
from turnwise.tools.types import ToolCall

# Far under Python's recursion limit: the result must not depend on the caller's stack.
MAX_DEPTH = 100
INCOMPLETE = "the JSON ends before it is complete"

_CONTAINERS = (dict, list)
_ARGUMENT_KEYS = ("arguments", "parameters")
_FENCE = re.compile(r"\s*+(?:```(?:json|JSON)?+\s*+)?+")
_SPACE = re.compile(r"\s*+")
_CLOSING_FENCE = re.compile(r"\s*+```")
# These are escaped in strings of a call, or a parser would take the text before for a thought.
_THOUGHT_ENDS = (("</think>", "\\u003c/think>"), ("[/THINK]", "\\u005b/THINK]"))


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


def read_json(text: str, start: int) -> tuple[Any, int, str | None]:
    """Returns the value at `start`, its end, and None; or None, the position and the problem."""
    try:
        value, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        return None, error.pos, _explain(text, error)
    except _NotJSON as error:
        return None, len(text), str(error)
    except ValueError:  # Python does not parse integers of this length
        return None, len(text), "a number has too many digits"
    except RecursionError:
        return None, len(text), "the JSON is nested too deeply"
    if text.count("{", start, end) + text.count("[", start, end) > MAX_DEPTH and is_deep(value):
        return None, end, "the JSON is nested too deeply"
    return value, end, None


def _explain(text: str, error: json.JSONDecodeError) -> str:
    if error.msg.startswith("Unterminated string") or skip_space(text, error.pos) == len(text):
        return INCOMPLETE
    return f"the JSON is broken near {text[error.pos : error.pos + 12]!r}: {error.msg}"


def is_deep(value: Any) -> bool:
    """Whether lists and objects are nested more than `MAX_DEPTH` deep."""
    level: list[Any] = [[value]]
    for _ in range(MAX_DEPTH + 1):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, _CONTAINERS)
        ]
        if not level:
            return False
    return True


def write_json(value: Any, tool: str) -> str:
    """Returns one line of JSON that parses to the same value."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        if text.count("{") + text.count("[") > MAX_DEPTH and is_deep(value):
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


def call_from_object(value: dict[str, Any], name_keys: tuple[str, ...]) -> ToolCall | str | None:
    """Returns the call of an object, the problem of an invalid call, or None for other JSON."""
    name_key = next((key for key in name_keys if key in value), None)
    argument_key = next((key for key in _ARGUMENT_KEYS if key in value), None)
    if name_key is None:
        if argument_key is None:
            return None
        return f'there is no "{name_keys[0]}" next to "{argument_key}"'
    if "description" in value and _is_schema(value.get("parameters")):
        return None  # the definition of a tool, repeated
    if argument_key is None and not value.keys() <= {name_key, "type", "id"}:
        # {"name": "Ann", "age": 3} is data; {"tool": ...} is meant as a call.
        return None if name_key == "name" else 'the arguments must be inside "arguments"'
    name = value[name_key]
    if not isinstance(name, str) or not name:
        return f'"{name_key}" must be the name of a tool, got {shorten(name)}'
    return make_call(name, {} if argument_key is None else value[argument_key])


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") == "object"


def read_call(text: str, position: int, name: str) -> tuple[ToolCall | str, int]:
    """Returns the call with the arguments at `position`, or the problem; and the end."""
    value, end, problem = read_json(text, position)
    return (make_call(name, value) if problem is None else problem), end


def make_call(name: str, arguments: Any) -> ToolCall | str:
    """Returns a call, or the problem of its arguments; they may be a JSON string."""
    if arguments is None or arguments == "":
        return ToolCall(name)  # models write these for a tool without arguments
    if isinstance(arguments, str):
        start = skip_space(arguments, 0)
        value, end, problem = read_json(arguments, start)
        if problem is not None and arguments.startswith("{", start):
            return f"in the arguments, {problem}"
        if problem is None and skip_space(arguments, end) == len(arguments):
            arguments = value
    if not isinstance(arguments, dict):
        return f"the arguments must be an object, got {shorten(arguments)}"
    return ToolCall(name, arguments)


def calls_from_values(values: Iterable[Any], end: int, name_keys: tuple[str, ...]) -> Attempt:
    """Reads values that must all be calls, up to the first that is none."""
    attempt = Attempt(end)
    for value in values:
        found = call_from_object(value, name_keys) if isinstance(value, dict) else None
        if not isinstance(found, ToolCall):
            attempt.problem = found or f"expected a call, got {shorten(value)}"
            break
        attempt.calls.append(found)
        if len(attempt.calls) > MAX_CALLS:
            break
    return attempt


def read_calls(text: str, start: int, name_keys: tuple[str, ...]) -> Attempt:
    """Reads an object or a list at `start`, which must be calls; a code fence is skipped."""
    value, end, problem = read_json(text, skip_fence(text, start))
    if problem is not None:
        return Attempt(end, problem=problem)
    values = value if isinstance(value, list) else [value]
    return calls_from_values(values, skip_closing_fence(text, end), name_keys)


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


def _after(pattern: re.Pattern[str], text: str, position: int) -> int:
    found = pattern.match(text, position)
    return position if found is None else found.end()


def shorten(value: object) -> str:
    """Returns a value in a few characters, for a message."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = json.dumps(value[:40] if isinstance(value, str) else value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:37]}..."
