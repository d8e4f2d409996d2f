"""Descriptions of Gymnasium's spaces and observations as text.

Discrete, MultiDiscrete, MultiBinary and Box are treated alike, as arrays of numbers with bounds.
Text, Dict and Tuple are built on them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from textwrap import indent
from typing import Any, TypeAlias

import numpy as np

from turnwise.errors import ConfigError, did_you_mean, import_extra

spaces: Any = import_extra("gymnasium.spaces", "gym")

Space: TypeAlias = Any
"""A `gymnasium.Space`; Gymnasium may not be installed where types are checked."""

Names: TypeAlias = Mapping[str, Any] | Sequence[str] | None
"""Names of the values of a Discrete, or of the elements of a vector or a Tuple.

A mapping adds the meanings; for a Dict it has the names of each key's space.
"""

MAX_NUMBERS = 64
"""Larger arrays are summarised."""

WORD_GAP = re.compile(r"(?<=\w)[\s_-]+(?=\w)")
"""Separators between the words of a name, which may be missing: pick up, Pick-up, PICKUP."""

_UNBOUNDED = 1e30  # classic environments write "no limit" as the largest float


def check_action_space(space: Space) -> None:
    """Raises an error for a space whose values cannot be written as text."""
    for leaf in _leaves(space):
        if not (is_numeric(leaf) or isinstance(leaf, spaces.Text)):
            raise ConfigError(
                f"actions of the space {leaf} cannot be written as text. "
                "Wrap the environment in gymnasium.wrappers.TransformAction so that it takes a "
                "Discrete, MultiDiscrete, MultiBinary, Box, Text, Dict or Tuple."
            )


def check_names(space: Space, names: Any, option: str) -> None:
    """Raises an error for names that do not fit the space."""
    if names is None:
        return
    kind, what = (Mapping | Sequence, "a list or a mapping")
    if isinstance(space, spaces.Dict):
        kind, what = (Mapping, "a mapping from keys to their names")
    if isinstance(names, str) or not isinstance(names, kind):
        raise ConfigError(f"{option} must be {what}, got {names!r}")
    if isinstance(space, spaces.Dict):
        for key, inner in names.items():
            if key not in space.spaces:
                known = did_you_mean(str(key), map(str, space.spaces))
                raise ConfigError(f"{option} names the key {key!r}, which {space} has not. {known}")
            check_names(space[key], inner, f"{option}[{key!r}]")
        return
    num_parts = _num_parts(space)
    if len(names) != num_parts:
        raise ConfigError(f"{option} has {len(names)} names, but {space} takes {num_parts}")
    folded = {WORD_GAP.sub("", str(name).strip()).casefold() for name in names}
    if len(folded) < len(names) or "" in folded or not all(isinstance(n, str) for n in names):
        raise ConfigError(f"{option} must be texts, all different, got {list(names)!r}")


def describe_space(space: Space, names: Names = None) -> str:
    """Describes the values of a space.

    >>> describe_space(spaces.Box(-1, 1, (2,)))
    'a list of 2 numbers, each from -1 to 1'
    """
    labels = list(names or ())
    if isinstance(space, spaces.Discrete) and labels:
        return "one of: " + ", ".join(f"{n} ({space.start + i})" for i, n in enumerate(labels))
    if is_numeric(space):
        return _describe_numbers(space, labels)
    if isinstance(space, spaces.Text):
        lengths = [str(length) for length in sorted({space.min_length, space.max_length})]
        return f"a text of {' to '.join(lengths)} characters out of {_runs(space.characters)}"
    if isinstance(space, spaces.Sequence):
        return f"a list of any length, each item {describe_space(space.feature_space)}"
    if isinstance(space, spaces.Dict):
        head = "an object with these keys:"
        inner = space.spaces.items()
        parts = [(f'"{key}"', describe_space(s, names_of_key(names, key))) for key, s in inner]
    elif isinstance(space, spaces.Tuple):
        head = f"a list of {len(space.spaces)} items:"
        labels = labels or _item_labels(space.spaces)
        parts = [(label, describe_space(s)) for label, s in zip(labels, space.spaces, strict=True)]
    else:
        return f"a value of {space}"
    if not parts:
        return "nothing"
    return head + "".join("\n" + indent(f"- {label}: {text}", "  ") for label, text in parts)


def _describe_numbers(space: Space, labels: list[str]) -> str:
    low, high = limits(space)
    whole = space.dtype.kind != "f"
    noun = "whole number" if whole else "number"
    ranges = [_range(least, most, whole) for least, most in zip(low.flat, high.flat, strict=True)]
    if is_scalar(space):
        return ranges[0] if ranges[0] == "0 or 1" else f"a {noun} {ranges[0]}"
    head = f"a list of {space.shape[0]} {noun}s"
    if len(space.shape) > 1:
        head = f"lists in lists of shape {' x '.join(map(str, space.shape))}, holding {noun}s"
    if labels:
        return f"{head}: " + ", ".join(f"{n} {r}" for n, r in zip(labels, ranges, strict=True))
    if len(set(ranges)) <= 1:
        return f"{head}, each {ranges[0]}" if ranges else head
    if len(ranges) <= MAX_NUMBERS:
        return f"{head}: {', '.join(ranges)}"
    return f"{head} {_range(low.min(), high.max(), whole)}"


def _range(low: Any, high: Any, whole: bool) -> str:
    if whole and (low, high) == (0, 1):
        return "0 or 1"
    least, most = (str(bound).removesuffix(".0") for bound in (low, high))
    if low <= -_UNBOUNDED:
        return "of any size" if high >= _UNBOUNDED else f"of at most {most}"
    return f"of at least {least}" if high >= _UNBOUNDED else f"from {least} to {most}"


def _runs(characters: str) -> str:
    """`abcdxyz 0` as `' ' 0 a-d x-z`."""
    runs: list[str] = []
    for _, group in groupby(enumerate(sorted(characters)), lambda pair: ord(pair[1]) - pair[0]):
        run = [c if c.isprintable() and not c.isspace() else repr(c) for _, c in group]
        runs += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else run
    return " ".join(runs)


def example_action(space: Space) -> Any:
    """Returns a simple value of the space: the lowest integer, half of the largest float."""
    if is_numeric(space):
        low, high = limits(space)
        wish = np.where(high < _UNBOUNDED, high / 2, 0) if space.dtype.kind == "f" else 0
        return np.asarray(np.maximum(low, np.minimum(high, wish))).astype(space.dtype)
    if isinstance(space, spaces.Text):
        return space.character_list[0] * max(space.min_length, min(3, space.max_length))
    if isinstance(space, spaces.Dict):
        return {key: example_action(inner) for key, inner in space.spaces.items()}
    return tuple(example_action(inner) for inner in space.spaces)


def what_is_seen(space: Space, names: Names = None) -> str:
    """Returns the part of the prompt that describes the observations."""
    if names and not isinstance(space, spaces.Dict | spaces.Discrete):
        return "\n".join(["You see:", *listed(names)])
    summary = "a summary of " if has_large_part(space) else ""
    return as_sentence(f"You see {summary}{describe_space(space, names)}")


def as_sentence(text: str) -> str:
    """Adds a full stop, except after a list of lines."""
    return text if "\n" in text else f"{text}."


def describe_observation(space: Space, value: Any, names: Names = None) -> str:
    """Describes an observation: one line per named element, else one line.

    >>> print(describe_observation(None, np.array([0.123456, 2.0]), ["height", "speed"]))
    height: 0.1235
    speed: 2
    """
    labels = list(names or ())
    if isinstance(space, spaces.Discrete) and labels:
        return labels[int(value - space.start)]
    if isinstance(value, spaces.GraphInstance):
        value = value._asdict()
    if isinstance(value, Mapping):
        inner = space.spaces if isinstance(space, spaces.Dict) else {}
        entries = [
            _entry(key, part, describe_observation(inner.get(key), part, names_of_key(names, key)))
            for key, part in value.items()
        ]
    elif isinstance(value, tuple | list) and (labels or not all(map(_is_number, value))):
        parts = zip(labels or _item_labels(value), value, strict=True)
        entries = [_entry(label, part, describe_observation(None, part)) for label, part in parts]
    elif labels:
        places = zip(labels, np.ravel(value), strict=True)
        entries = [f"{label}: {_describe_value(number)}" for label, number in places]
    else:
        return _describe_value(value)
    return "\n".join(entries) or "nothing"


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float | np.bool_ | np.number)


def _entry(label: Any, part: Any, text: str) -> str:
    is_block = "\n" in text or isinstance(part, Mapping)
    return f"{label}:\n{indent(text, '  ')}" if is_block else f"{label}: {text}"


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
    if isinstance(value, np.ndarray) and value.size > MAX_NUMBERS:
        shape = " x ".join(map(str, value.shape))
        low, high, mean = (_describe_value(float(f(value))) for f in (np.min, np.max, np.mean))
        return f"an array of shape {shape}, values from {low} to {high}, mean {mean}"
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return _describe_value(value[()])
    if isinstance(value, np.ndarray | list | tuple):
        return "[" + ", ".join(map(_describe_value, value)) + "]"
    raise ConfigError(
        f"cannot put an observation of type {type(value).__name__} into words. "
        "Give GymnasiumEnvironment a function that can: describe=lambda observation: ..."
    )


def has_large_part(space: Space) -> bool:
    """Whether some part of an observation is summarised."""
    return any(is_numeric(leaf) and math.prod(leaf.shape) > MAX_NUMBERS for leaf in _leaves(space))


def listed(names: Names, first: int | None = None) -> list[str]:
    """Returns one line per name, with its number and its meaning if there are any."""
    meanings = names if isinstance(names, Mapping) else dict.fromkeys(names or (), "")
    lines = []
    for place, (name, meaning) in enumerate(meanings.items()):
        number = "" if first is None else f" ({first + place})"
        lines.append(f"- {name}{number}: {meaning}" if meaning else f"- {name}{number}")
    return lines


def names_of_key(names: Names, key: Any) -> Names:
    """Returns the names of one key of a Dict."""
    return names.get(key) if isinstance(names, Mapping) else None


def limits(space: Space) -> tuple[Any, Any]:
    """Returns the bounds of each element; integers as Python integers, which are exact."""
    if isinstance(space, spaces.Box):
        kind = space.dtype if space.dtype.kind == "f" else object
        return space.low.astype(kind), space.high.astype(kind)
    if isinstance(space, spaces.MultiBinary):
        return np.full(space.shape, 0, object), np.full(space.shape, 1, object)
    counts = space.n if isinstance(space, spaces.Discrete) else space.nvec
    low = np.asarray(space.start).astype(object)
    return low, np.asarray(low + np.asarray(counts).astype(object) - 1, dtype=object)


def is_numeric(space: Space) -> bool:
    """Whether its values are numbers, or arrays of them."""
    kinds = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Box)
    return isinstance(space, kinds)


def is_scalar(space: Space) -> bool:
    """Whether its values are single numbers."""
    return is_numeric(space) and math.prod(space.shape) == 1


def _leaves(space: Space) -> Iterator[Space]:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        inner = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        for part in inner:
            yield from _leaves(part)
    else:
        yield space


def _num_parts(space: Space) -> int:
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.Tuple):
        return len(space.spaces)
    return math.prod(space.shape) if is_numeric(space) else 0


def _item_labels(items: Sequence[Any]) -> list[str]:
    return [f"item {i}" for i in range(1, len(items) + 1)]
