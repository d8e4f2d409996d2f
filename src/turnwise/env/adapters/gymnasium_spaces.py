"""Gymnasium's spaces as text: what is observed, what may be answered, and reading the answer.

Discrete, MultiDiscrete, MultiBinary and Box are treated alike, as arrays of numbers with bounds.
Observations may also be a Text, or a Dict or Tuple of all these. An answer is a name or a number
for a Discrete, plain text for a Text, a JSON list for anything larger. Of several answers in one
text the last one counts, since the decision comes after the reasoning.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from textwrap import indent
from typing import Any, TypeAlias

import numpy as np

from turnwise.errors import ConfigError, TurnwiseError, import_extra

gymnasium: Any = import_extra("gymnasium", "gym")
spaces: Any = gymnasium.spaces

Space: TypeAlias = Any
"""A `gymnasium.Space`; Gymnasium may not be installed where types are checked."""

Names: TypeAlias = Mapping[str, str]
"""The names of a Discrete's values or of a vector's numbers, with their meanings; may be empty."""

MAX_NUMBERS = 64
"""Larger arrays are summarised."""

# Separators between the words of a name, which may be missing: pick up, Pick-up, PICKUP.
_WORD_GAP = re.compile(r"(?<=\w)[\s_-]+(?=\w)")
_NUMBER = re.compile(r"(?<![\w.])(?>[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)(?!\w)")


class InvalidActionError(TurnwiseError, ValueError):
    """A text is not an action of the space; the message is for the model."""


def check_action_space(space: Space) -> None:
    """Raises an error for a space whose values cannot be written as text."""
    if not (_is_numeric(space) or isinstance(space, spaces.Text)):
        raise ConfigError(
            f"actions of the space {space} cannot be written as text. Wrap the environment in "
            "gymnasium.wrappers.TransformAction, so that it takes a Discrete, MultiDiscrete, "
            "MultiBinary, Box or Text."
        )


def read_names(space: Space, names: Mapping[str, str] | Sequence[str], option: str) -> Names:
    """Returns a list or mapping of names as a mapping; raises an error if it does not fit."""
    is_text = isinstance(names, str) or not isinstance(names, Mapping | Sequence)
    if is_text or len(names) != count_names(space):
        expected = f"a list or a mapping of {count_names(space)} names for {space}"
        raise ConfigError(f"{option} must be {expected}, got {names!r}")
    folded = {_WORD_GAP.sub("", str(name).strip()).casefold() for name in names}
    if len(folded) < len(names) or "" in folded or not all(isinstance(n, str) for n in names):
        raise ConfigError(f"{option} must be names, all different, got {list(names)!r}")
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
    if isinstance(space, spaces.Dict):
        parts = [f'"{key}": {describe_space(inner, {})}' for key, inner in space.items()]
        return "{" + ", ".join(parts) + "}"
    if isinstance(space, spaces.Tuple):
        return "[" + ", ".join(describe_space(inner, {}) for inner in space) + "]"
    if isinstance(space, spaces.Text):
        characters = "".join(sorted(space.characters))
        return f"a text of {space.min_length} to {space.max_length} characters of {characters!r}"
    if not _is_numeric(space):
        return f"a value of {space}"
    ends = [[str(end).removesuffix(".0") for end in side.flat] for side in _limits(space)]
    ranges = [f"from {low} to {high}" for low, high in zip(*ends, strict=True)]
    noun = "number" if space.dtype.kind == "f" else "whole number"
    if _is_scalar(space):
        return f"a {noun} {ranges[0]}"
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
        return "\n".join(["You see:", *_list_names(names)])
    return f"You see {describe_space(space, names)}."


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
    if not isinstance(value, int | float) and not hasattr(value, "__array__"):
        fix = "Give GymnasiumEnvironment a function that can: describe=lambda observation: ..."
        raise ConfigError(
            f"cannot put an observation of type {type(value).__name__} into words. {fix}"
        )
    value = np.asarray(value)  # it may be an array of jax or torch
    if value.size > MAX_NUMBERS:
        shape = " x ".join(map(str, value.shape))
        low, high, mean = (_describe_value(float(f(value))) for f in (np.min, np.max, np.mean))
        return f"an array of shape {shape}, values from {low} to {high}, mean {mean}"
    if value.ndim:
        return "[" + ", ".join(map(_describe_value, value)) + "]"
    number = value.item()
    if isinstance(number, bool):
        return "yes" if number else "no"
    return f"{number + 0.0:.4g}" if isinstance(number, float) else str(number)  # -0 + 0 is 0


def has_large_part(space: Space) -> bool:
    """Whether some part of an observation is summarised."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.values() if isinstance(space, spaces.Dict) else space
        return any(map(has_large_part, parts))
    return _is_numeric(space) and math.prod(space.shape) > MAX_NUMBERS


def describe_answers(space: Space, names: Names) -> str:
    """Returns the part of the prompt that lists the valid answers, with an example."""
    what = describe_space(space, names)
    if isinstance(space, spaces.Text):
        lines = [f"Answer with {what}, and nothing else."]
    elif isinstance(space, spaces.Discrete) and names:
        lines = ["Answer with one action, by its name or its number:"]
        lines += _list_names(names, first=int(space.start))
    else:
        lines = [f"Answer with {'' if _is_scalar(space) else 'JSON: '}{what}."]
        lines += _list_names({name: meaning for name, meaning in names.items() if meaning})
    lines.append(f"For example: {render_action(space, example_action(space), names)}")
    if not isinstance(space, spaces.Text):
        lines.append("If you write several, the last one counts.")
    return "\n".join(lines)


def example_action(space: Space) -> Any:
    """Returns a simple value of the space: the lowest integer, half of the largest float."""
    if isinstance(space, spaces.Text):
        return space.character_list[0] * max(space.min_length, min(3, space.max_length))
    low, high = _limits(space)
    wish = np.where(high < np.inf, high / 2, 0) if space.dtype.kind == "f" else 0
    return np.asarray(np.maximum(low, np.minimum(high, wish))).astype(space.dtype)


def render_action(space: Space, value: Any, names: Names) -> str:
    """Returns the answer for `value`, from which `parse_action` restores it exactly."""
    if isinstance(space, spaces.Discrete) and names:
        return list(names)[int(value - space.start)]
    if isinstance(space, spaces.Text):
        return str(value)
    array = np.asarray(value, dtype=space.dtype)
    array = array.reshape(()) if _is_scalar(space) else array
    # By text: the shortest decimal of a float32 is far shorter than that of the same float64.
    numbers = (array.astype(str).astype(float) if array.dtype.kind == "f" else array).tolist()
    return json.dumps(numbers)


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
    else:  # the last JSON list
        end = 0
        while (start := text.find("[", end)) >= 0:
            try:
                data, end = json.JSONDecoder().raw_decode(text, start)
            except (ValueError, RecursionError):
                end = start + 1
    if data is None and _is_scalar(space):
        numbers = _NUMBER.findall(text.replace("\N{MINUS SIGN}", "-"))
        try:
            data = int(numbers[-1].removesuffix(".")) if numbers else None
        except ValueError:  # a fraction, or more digits than Python turns into an int
            data = float(numbers[-1])
    got = f"no action found in {text[:80]!r}" if data is None else f"the answer is {str(data)[:80]}"
    try:
        value = None if data is None else _from_json(space, data)
    except (ValueError, OverflowError):
        value = None
    if value is None or not space.contains(value):
        raise InvalidActionError(f"{got}, expected {describe_space(space, names)}.")
    return value


def _from_json(space: Space, data: Any) -> Any:
    """Returns the value that `data` stands for; None or a ValueError where its form is wrong."""
    if isinstance(space, spaces.Text):
        return data
    array = np.array(data)
    if array.dtype.kind not in "biuf":
        return None
    if _is_scalar(space):  # a single number is accepted with and without lists around it
        array = array.reshape(space.shape)
    # In the space's precision, so that 0.7 is within a float32 bound of 0.7.
    with np.errstate(all="ignore"):
        value = array.astype(space.dtype)
    is_exact = space.dtype.kind == "f" or np.array_equal(value, array)
    if not is_exact or not np.isfinite(value).all():
        return None
    return value[()] if isinstance(space, spaces.Discrete) else value


def _list_names(names: Names, first: int | None = None) -> list[str]:
    """Returns one line per name, with its number and its meaning if there are any."""
    lines = []
    for index, (name, meaning) in enumerate(names.items()):
        number = "" if first is None else f" ({first + index})"
        lines.append(f"- {name}{number}{meaning and f': {meaning}'}")
    return lines


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
