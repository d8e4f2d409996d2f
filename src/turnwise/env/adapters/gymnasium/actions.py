"""Renders actions of Gymnasium's spaces as text, and parses them from a model's answer.

An answer is a name or a number for a Discrete, plain text for a Text, JSON for anything larger. Of
several answers in one text the last one counts, since the decision comes after the reasoning.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from turnwise.env.adapters.gymnasium.spaces import (
    WORD_GAP,
    Names,
    Space,
    as_sentence,
    describe_space,
    example_action,
    is_numeric,
    is_scalar,
    limits,
    listed,
    names_of_key,
    spaces,
)
from turnwise.errors import TurnwiseError

_NUMBER = re.compile(r"(?<![\w.])(?>[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)(?!\w)")
_SHORT = reprlib.Repr()
_SHORT.maxstring = 80


class InvalidActionError(TurnwiseError, ValueError):
    """A text is not an action of the space; the message is for the model."""


def how_to_answer(space: Space, names: Names = None) -> str:
    """Returns the part of the prompt that lists the valid answers, with an example."""
    what = describe_space(space, names)
    meanings = listed(names) if isinstance(names, Mapping) else []
    if isinstance(space, spaces.Text):
        lines = [f"Answer with {what}, and nothing else."]
    elif isinstance(space, spaces.Discrete) and names:
        lines = ["Answer with one action, by its name or its number:"]
        lines += listed(names, first=int(space.start))
    elif is_scalar(space):
        lines = [f"Answer with {what}{':' if meanings else '.'}", *meanings]
    else:
        lines = [as_sentence(f"Answer with JSON: {what}")]
        lines += [] if isinstance(space, spaces.Dict) else meanings
    lines.append(f"For example: {render_action(space, example_action(space), names)}")
    if not isinstance(space, spaces.Text):
        lines.append("If you write several, the last one counts.")
    return "\n".join(lines)


def render_action(space: Space, value: Any, names: Names = None) -> str:
    """Returns the answer for `value`, from which `parse_action` restores it exactly."""
    data = _to_json(space, value, names)
    if isinstance(data, str):
        return data
    return json.dumps(data, ensure_ascii=False)


def _to_json(space: Space, value: Any, names: Names) -> Any:
    if isinstance(space, spaces.Discrete):
        return list(names)[int(value - space.start)] if names else int(value)
    if is_numeric(space):
        array = np.asarray(value, dtype=space.dtype)
        return _exact(array.reshape(()) if is_scalar(space) else array)
    if isinstance(space, spaces.Text):
        return str(value)
    if isinstance(space, spaces.Dict):
        inner = space.spaces.items()
        return {str(k): _to_json(s, value[k], names_of_key(names, k)) for k, s in inner}
    return [_to_json(s, part, None) for s, part in zip(space.spaces, value, strict=True)]


def _exact(array: Any) -> Any:
    if array.ndim:
        return [_exact(part) for part in array]
    # The shortest decimal of a float32 is far shorter than that of the same float64.
    return float(str(array)) if array.dtype.kind == "f" else int(array)


def parse_action(space: Space, text: str, names: Names = None) -> Any:
    """Returns the action in a text, or raises `InvalidActionError`.

    >>> int(parse_action(spaces.Discrete(2), "I push it to the right.", ["left", "right"]))
    1
    """
    data: Any = None
    if isinstance(space, spaces.Text):
        data = text if text in space else text.strip()
    elif isinstance(space, spaces.Discrete):
        data = text if last_name(text, list(names or ())) is not None else None
    else:
        data = last_json(text, "{" if isinstance(space, spaces.Dict) else "[")
    if data is None and is_scalar(space):
        data = last_number(text)
    if data is None:
        raise _not_valid("no action found in", text, space, names)
    return _read(space, data, names, "the answer")


def _read(space: Space, data: Any, names: Names, place: str) -> Any:
    """Returns a value of the space from JSON; `place` names the part of the answer."""

    def wrong() -> InvalidActionError:
        return _not_valid(f"{place} is", data, space, names)

    if isinstance(space, spaces.Discrete) and isinstance(data, str):
        named = last_name(data, list(names or ()))
        if named is None:
            raise wrong()
        return space.dtype.type(space.start + named)
    if is_numeric(space):
        return _read_numbers(space, data, wrong)
    if isinstance(space, spaces.Text):
        if data not in space:
            raise wrong()
        return data
    if isinstance(space, spaces.Dict):
        keys = {str(key): key for key in space.spaces}
        if not isinstance(data, dict) or data.keys() != keys.keys():
            raise wrong()
        return {
            key: _read(space[key], data[name], names_of_key(names, key), f'"{name}" of {place}')
            for name, key in keys.items()
        }
    if not isinstance(data, list) or len(data) != len(space.spaces):
        raise wrong()
    parts = enumerate(zip(space.spaces, data, strict=True), start=1)
    return tuple(_read(s, part, None, f"item {i} of {place}") for i, (s, part) in parts)


def _not_valid(problem: str, got: Any, space: Space, names: Names) -> InvalidActionError:
    expected = as_sentence(f"expected {describe_space(space, names)}")
    return InvalidActionError(f"{problem} {_SHORT.repr(got)}, {expected}")


def _read_numbers(space: Space, data: Any, wrong: Callable[[], InvalidActionError]) -> Any:
    if is_scalar(space):
        # A single number is accepted without the lists around it.
        while isinstance(data, list) and len(data) == 1:
            (data,) = data
        for _ in space.shape:
            data = [data]
    low, high = limits(space)

    def read(data: Any, index: tuple[int, ...]) -> Any:
        if len(index) == len(space.shape):
            number = _as_number(data, space.dtype)
            if number is None or not low[index] <= number <= high[index]:
                raise wrong()
            return number
        if not isinstance(data, list) or len(data) != space.shape[len(index)]:
            raise wrong()
        return [read(part, (*index, i)) for i, part in enumerate(data)]

    array = np.array(read(data, ()), dtype=space.dtype).reshape(space.shape)
    return array[()] if isinstance(space, spaces.Discrete) else array


def _as_number(data: Any, dtype: Any) -> Any:
    """Returns the number in the space's precision, so that 0.7 is within a float32 bound of 0.7."""
    if not isinstance(data, int | float) or data != data or data in (math.inf, -math.inf):
        return None
    if dtype.kind != "f":
        return int(data) if data == int(data) else None
    if isinstance(data, bool) or abs(data) > float(np.finfo(dtype).max):
        return None
    return dtype.type(data)


def last_name(text: str, names: Sequence[str]) -> int | None:
    """Returns the index of the name that is last in the text.

    >>> last_name("Not left: I pick-up!", ["left", "pick up"])
    1
    """
    if not names:
        return None
    order = sorted(range(len(names)), key=lambda i: -len(names[i]))  # "go far" before "go"
    words = [map(re.escape, WORD_GAP.split(names[i].strip())) for i in order]
    pattern = "|".join("(" + r"[\s_-]*".join(parts) + ")" for parts in words)
    found = list(re.finditer(rf"(?<!\w)(?:{pattern})(?!\w)", text, re.IGNORECASE))
    return order[(found[-1].lastindex or 0) - 1] if found else None


def last_number(text: str) -> int | float | None:
    """Returns the last number in the text; infinite if it is too large for a float.

    >>> last_number("Speed is 0.02, so I push with -1.")
    -1
    """
    found = _NUMBER.findall(text.replace("\N{MINUS SIGN}", "-"))
    if not found:
        return None
    try:
        return int(found[-1].removesuffix("."))
    except ValueError:  # a fraction, or more digits than Python turns into an int
        return float(found[-1])


def last_json(text: str, opening: str) -> Any:
    """Returns the last JSON list (`opening` is `[`) or object (`{`) in the text, or None.

    >>> last_json("Perhaps [1, 2]? No: [2, 1].", "[")
    [2, 1]
    """
    decoder = json.JSONDecoder()
    found = None
    at = text.find(opening)
    while at >= 0:
        try:
            found, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            end = at + 1
        at = text.find(opening, end)
    return found
