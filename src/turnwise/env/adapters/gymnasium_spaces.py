"""Gymnasium's spaces as text: what is observed, what may be answered, and reading the answer.

Discrete, MultiDiscrete, MultiBinary and Box are treated alike, as arrays of numbers with bounds.
Text, Dict and Tuple are built on them. An answer is a name or a number for a Discrete, plain text
for a Text, JSON for anything larger. Of several answers in one text the last one counts, since the
decision comes after the reasoning.
"""

import json
import math
import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from textwrap import indent
from typing import Any, TypeAlias

import numpy as np

from turnwise.errors import ConfigError, TurnwiseError, import_extra

spaces: Any = import_extra("gymnasium.spaces", "gym")

Space: TypeAlias = Any
"""A `gymnasium.Space`; Gymnasium may not be installed where types are checked."""

Names: TypeAlias = Mapping[str, str]
"""The names of a Discrete's values or of a vector's numbers, with their meanings; may be empty."""

MAX_NUMBERS = 64
"""Larger arrays are summarised."""

_UNBOUNDED = 1e30  # classic environments write "no limit" as the largest float
# Separators between the words of a name, which may be missing: pick up, Pick-up, PICKUP.
_WORD_GAP = re.compile(r"(?<=\w)[\s_-]+(?=\w)")
_NUMBER = re.compile(r"(?<![\w.])(?>[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)(?!\w)")
_SHORT = reprlib.Repr()
_SHORT.maxstring = 80


class InvalidActionError(TurnwiseError, ValueError):
    """A text is not an action of the space; the message is for the model."""


def check_action_space(space: Space) -> None:
    """Raises an error for a space whose values cannot be written as text."""
    for leaf in _leaves(space):
        if not (_is_numeric(leaf) or isinstance(leaf, spaces.Text)):
            raise ConfigError(
                f"actions of the space {leaf} cannot be written as text. "
                "Wrap the environment in gymnasium.wrappers.TransformAction so that it takes a "
                "Discrete, MultiDiscrete, MultiBinary, Box, Text, Dict or Tuple."
            )


def read_names(space: Space, names: Mapping[str, str] | Sequence[str], option: str) -> Names:
    """Returns a list or mapping of names as a mapping; raises an error if it does not fit."""
    if isinstance(names, str) or not isinstance(names, Mapping | Sequence):
        raise ConfigError(f"{option} must be a list or a mapping, got {names!r}")
    if len(names) != count_names(space):
        raise ConfigError(
            f"{option} has {len(names)} names, but {space} takes {count_names(space)}"
        )
    folded = {_WORD_GAP.sub("", str(name).strip()).casefold() for name in names}
    if len(folded) < len(names) or "" in folded or not all(isinstance(n, str) for n in names):
        raise ConfigError(f"{option} must be texts, all different, got {list(names)!r}")
    return names if isinstance(names, Mapping) else dict.fromkeys(names, "")


def count_names(space: Space) -> int:
    """Returns how many names a space takes: of a Discrete's values, or of a vector's numbers."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    return math.prod(space.shape) if _is_numeric(space) else 0


def describe_space(space: Space, names: Names) -> str:
    """Describes the values of a space.

    >>> describe_space(spaces.Box(-1, 1, (2,)), {})
    'a list of 2 numbers, each from -1 to 1'
    """
    if isinstance(space, spaces.Discrete) and names:
        return "one of: " + ", ".join(f"{n} ({space.start + i})" for i, n in enumerate(names))
    if _is_numeric(space):
        return _describe_numbers(space, names)
    if isinstance(space, spaces.Text):
        lengths = [str(length) for length in sorted({space.min_length, space.max_length})]
        characters = "".join(sorted(space.characters))
        return f"a text of {' to '.join(lengths)} characters out of {characters!r}"
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return f"a value of {space}"
    head = "an object with these keys:"
    parts = {f'"{key}"': inner for key, inner in _parts(space)}
    if isinstance(space, spaces.Tuple):
        head = f"a list of {len(space.spaces)} items:"
        parts = {f"item {index + 1}": inner for index, inner in _parts(space)}
    lines = [indent(f"- {label}: {describe_space(s, {})}", "  ") for label, s in parts.items()]
    return "\n".join([head, *lines]) if lines else "nothing"


def _describe_numbers(space: Space, names: Names) -> str:
    low, high = _limits(space)
    whole = space.dtype.kind != "f"
    noun = "whole number" if whole else "number"
    ranges = []
    for least, most in zip(low.flat, high.flat, strict=True):
        at_least, at_most = (str(bound).removesuffix(".0") for bound in (least, most))
        if whole and (least, most) == (0, 1):
            ranges.append("0 or 1")
        elif least <= -_UNBOUNDED:
            ranges.append("of any size" if most >= _UNBOUNDED else f"of at most {at_most}")
        else:
            is_open = most >= _UNBOUNDED
            ranges.append(f"of at least {at_least}" if is_open else f"from {at_least} to {at_most}")
    if _is_scalar(space):
        return ranges[0] if ranges[0] == "0 or 1" else f"a {noun} {ranges[0]}"
    head = f"a list of {space.shape[0]} {noun}s"
    if len(space.shape) > 1:
        head = f"lists in lists of shape {' x '.join(map(str, space.shape))}, holding {noun}s"
    if names:
        return f"{head}: " + ", ".join(f"{n} {r}" for n, r in zip(names, ranges, strict=True))
    if len(set(ranges)) == 1:
        return f"{head}, each {ranges[0]}"
    return f"{head}: {', '.join(ranges[:MAX_NUMBERS])}{', ...' * (len(ranges) > MAX_NUMBERS)}"


def describe_observations(space: Space, names: Names) -> str:
    """Returns the part of the prompt that says what is observed."""
    if names and not isinstance(space, spaces.Discrete):
        return "\n".join(["You see:", *_listed(names)])
    summary = "a summary of " if has_large_part(space) else ""
    return _as_sentence(f"You see {summary}{describe_space(space, names)}")


def describe_observation(space: Space, value: Any, names: Names) -> str:
    """Describes an observation: one line per named element, else one line.

    >>> print(describe_observation(None, np.array([0.123456, 2.0]), {"height": "", "speed": ""}))
    height: 0.1235
    speed: 2
    """
    if isinstance(space, spaces.Discrete) and names:
        return list(names)[int(value - space.start)]
    if names:
        parts = dict(zip(names, np.ravel(value), strict=True))
    elif isinstance(value, Mapping):
        parts = dict(value)
    elif isinstance(value, tuple | list):
        if all(isinstance(part, int | float | np.number) for part in value):
            return _describe_value(np.array(value))
        parts = {f"item {number}": part for number, part in enumerate(value, start=1)}
    else:
        return _describe_value(value)
    lines = []
    for label, part in parts.items():
        text = describe_observation(None, part, {})
        is_block = "\n" in text or isinstance(part, Mapping)
        lines.append(f"{label}:\n{indent(text, '  ')}" if is_block else f"{label}: {text}")
    return "\n".join(lines) or "nothing"


def _describe_value(value: Any) -> str:
    """Describes one number, text or array on one line, with four digits."""
    if value is None or isinstance(value, str):
        return value or "none"
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, int | np.integer):
        return str(int(value))
    if isinstance(value, float | np.floating):
        return f"{float(value) + 0.0:.4g}"  # adding 0 turns -0 into 0
    if not isinstance(value, np.ndarray):
        raise ConfigError(
            f"cannot put an observation of type {type(value).__name__} into words. "
            "Give GymnasiumEnvironment a function that can: describe=lambda observation: ..."
        )
    if value.size > MAX_NUMBERS:
        shape = " x ".join(map(str, value.shape))
        low, high, mean = (_describe_value(float(f(value))) for f in (np.min, np.max, np.mean))
        return f"an array of shape {shape}, values from {low} to {high}, mean {mean}"
    if value.ndim == 0:
        return _describe_value(value[()])
    return "[" + ", ".join(map(_describe_value, value)) + "]"


def has_large_part(space: Space) -> bool:
    """Whether some part of an observation is summarised."""
    return any(_is_numeric(leaf) and math.prod(leaf.shape) > MAX_NUMBERS for leaf in _leaves(space))


def describe_answers(space: Space, names: Names) -> str:
    """Returns the part of the prompt that lists the valid answers, with an example."""
    what = describe_space(space, names)
    meanings = _listed({name: meaning for name, meaning in names.items() if meaning})
    if isinstance(space, spaces.Text):
        lines = [f"Answer with {what}, and nothing else."]
    elif isinstance(space, spaces.Discrete) and names:
        lines = ["Answer with one action, by its name or its number:"]
        lines += _listed(names, first=int(space.start))
    elif _is_scalar(space):
        lines = [f"Answer with {what}{':' if meanings else '.'}", *meanings]
    else:
        lines = [_as_sentence(f"Answer with JSON: {what}"), *meanings]
    lines.append(f"For example: {render_action(space, example_action(space), names)}")
    if not isinstance(space, spaces.Text):
        lines.append("If you write several, the last one counts.")
    return "\n".join(lines)


def example_action(space: Space) -> Any:
    """Returns a simple value of the space: the lowest integer, half of the largest float."""
    if _is_numeric(space):
        low, high = _limits(space)
        wish = np.where(high < _UNBOUNDED, high / 2, 0) if space.dtype.kind == "f" else 0
        return np.asarray(np.maximum(low, np.minimum(high, wish))).astype(space.dtype)
    if isinstance(space, spaces.Text):
        return space.character_list[0] * max(space.min_length, min(3, space.max_length))
    parts = {key: example_action(inner) for key, inner in _parts(space)}
    return parts if isinstance(space, spaces.Dict) else tuple(parts.values())


def render_action(space: Space, value: Any, names: Names) -> str:
    """Returns the answer for `value`, from which `parse_action` restores it exactly."""
    if isinstance(space, spaces.Discrete) and names:
        return list(names)[int(value - space.start)]
    data = _to_json(space, value)
    return data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)


def _to_json(space: Space, value: Any) -> Any:
    if _is_numeric(space):
        array = np.asarray(value, dtype=space.dtype)
        array = array.reshape(()) if _is_scalar(space) else array
        # By text: the shortest decimal of a float32 is far shorter than that of the same float64.
        return (array.astype(str).astype(float) if array.dtype.kind == "f" else array).tolist()
    if isinstance(space, spaces.Text):
        return str(value)
    data = {str(key): _to_json(inner, value[key]) for key, inner in _parts(space)}
    return data if isinstance(space, spaces.Dict) else list(data.values())


def parse_action(space: Space, text: str, names: Names) -> Any:
    """Returns the action in a text, or raises `InvalidActionError`.

    >>> names = {"left": "", "right": ""}
    >>> int(parse_action(spaces.Discrete(2), "I push it to the right.", names))
    1
    """
    data: Any = None
    if isinstance(space, spaces.Text):
        data = text if text in space else text.strip()
    elif isinstance(space, spaces.Discrete):
        labels = sorted(names, key=len, reverse=True)  # "go far" before "go"
        words = [map(re.escape, _WORD_GAP.split(label.strip())) for label in labels]
        pattern = "|".join("(" + r"[\s_-]*".join(parts) + ")" for parts in words)
        matches = list(re.finditer(rf"(?<!\w)(?:{pattern})(?!\w)", text, re.IGNORECASE))
        if names and matches:
            last = labels[(matches[-1].lastindex or 0) - 1]
            data = int(space.start) + list(names).index(last)
    else:
        data = _last_json(text, "{" if isinstance(space, spaces.Dict) else "[")
    if data is None and _is_scalar(space):
        numbers = _NUMBER.findall(text.replace("\N{MINUS SIGN}", "-"))
        try:
            data = int(numbers[-1].removesuffix(".")) if numbers else None
        except ValueError:  # a fraction, or more digits than Python turns into an int
            data = float(numbers[-1])
    expected = _as_sentence(f"expected {describe_space(space, names)}")
    if data is None:
        raise InvalidActionError(f"no action found in {_SHORT.repr(text)}, {expected}")
    try:
        value = _from_json(space, data)
    except (ValueError, OverflowError):
        value = None
    if value is None or not space.contains(value):
        raise InvalidActionError(f"the answer is {_SHORT.repr(data)}, {expected}")
    return value


def _from_json(space: Space, data: Any) -> Any:
    """Returns the value that `data` stands for; None or a ValueError where its form is wrong."""
    if isinstance(space, spaces.Dict):
        keys = {str(key): key for key in space.spaces}
        if not isinstance(data, dict) or data.keys() != keys.keys():
            return None
        return {key: _from_json(space[key], data[name]) for name, key in keys.items()}
    if isinstance(space, spaces.Tuple):
        if not isinstance(data, list) or len(data) != len(space.spaces):
            return None
        return tuple(map(_from_json, space.spaces, data))
    if isinstance(space, spaces.Text):
        return data
    if _is_scalar(space):
        # A single number is accepted without the lists around it.
        while isinstance(data, list) and len(data) == 1:
            (data,) = data
    array = np.array(data)
    if array.dtype.kind not in "biuf":
        return None
    if _is_scalar(space):
        array = array.reshape(space.shape)
    # In the space's precision, so that 0.7 is within a float32 bound of 0.7.
    with np.errstate(all="ignore"):
        value = array.astype(space.dtype)
    is_exact = space.dtype.kind == "f" or np.array_equal(value, array)
    if not is_exact or not np.isfinite(value).all():
        return None
    return value[()] if isinstance(space, spaces.Discrete) else value


def _last_json(text: str, opening: str) -> Any:
    """Returns the last JSON list (`opening` is `[`) or object (`{`) in the text, or None."""
    decoder = json.JSONDecoder()
    last = None
    at = text.find(opening)
    while at >= 0:
        try:
            last, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            end = at + 1
        at = text.find(opening, end)
    return last


def _listed(names: Names, first: int | None = None) -> list[str]:
    """Returns one line per name, with its number and its meaning if there are any."""
    lines = []
    for index, (name, meaning) in enumerate(names.items()):
        number = "" if first is None else f" ({first + index})"
        lines.append(f"- {name}{number}: {meaning}" if meaning else f"- {name}{number}")
    return lines


def _as_sentence(text: str) -> str:
    """Adds a full stop, except after a list of lines."""
    return text if "\n" in text else f"{text}."


def _limits(space: Space) -> tuple[Any, Any]:
    """Returns the bounds of each element; integers as Python integers, which are exact."""
    if isinstance(space, spaces.Box):
        kind = space.dtype if space.dtype.kind == "f" else object
        return space.low.astype(kind), space.high.astype(kind)
    if isinstance(space, spaces.MultiBinary):
        return np.full(space.shape, 0, object), np.full(space.shape, 1, object)
    counts = space.n if isinstance(space, spaces.Discrete) else space.nvec
    low = np.asarray(space.start).astype(object)
    return low, np.asarray(low + np.asarray(counts).astype(object) - 1, dtype=object)


def _is_numeric(space: Space) -> bool:
    kinds = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Box)
    return isinstance(space, kinds)


def _is_scalar(space: Space) -> bool:
    return _is_numeric(space) and math.prod(space.shape) == 1


def _parts(space: Space) -> list[tuple[Any, Space]]:
    """Returns the inner spaces of a Dict or Tuple, with their keys."""
    inner = space.spaces
    return list(inner.items() if isinstance(space, spaces.Dict) else enumerate(inner))


def _leaves(space: Space) -> Iterator[Space]:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for _, part in _parts(space):
            yield from _leaves(part)
    else:
        yield space
