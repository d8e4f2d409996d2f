"""Converts any object of an environment or a tool to JSON of bounded size."""

import math
import re
import reprlib
from collections.abc import Mapping
from typing import Any

import numpy as np

_MAX_DEPTH = 16
_MAX_BITS = 4096
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")

# Bounded in time too: the plain `repr` of a huge set would format all of it.
_REPR = reprlib.Repr()
_REPR.maxother = _REPR.maxstring = _REPR.maxlong = 400
_REPR.maxlist = _REPR.maxset = _REPR.maxfrozenset = _REPR.maxdict = _REPR.maxdeque = 20


def plain_json(value: Any, room: float = math.inf) -> Any:
    """Return a value as JSON of about `room` characters; other objects as their cut `repr`.

    >>> plain_json({"price": np.float32(0.5), 3: (1, {2})})
    {'price': 0.5, '3': [1, '{2}']}
    >>> plain_json("abcdefgh", 4)
    'abc... [cut: 8 characters]'
    """
    left = room

    def text(words: str) -> str:
        nonlocal left
        kept = max(left, 0)
        left -= len(words)
        if len(words) <= kept:
            return words
        return f"{words[: int(kept)]}... [cut: {len(words)} characters]"

    def plain(value: Any, depth: int) -> Any:
        nonlocal left
        left -= 1
        if isinstance(value, str):
            return text(str(value))
        if value is None or isinstance(value, bool | np.bool_):
            return None if value is None else bool(value)
        if isinstance(value, int | np.integer):
            # Python refuses to format numbers of thousands of digits.
            number = int(value)
            bits = number.bit_length()
            return number if bits <= _MAX_BITS else f"<int of {bits} bits>"
        if isinstance(value, float | np.floating):
            return float(value) if math.isfinite(value) else str(float(value))
        if isinstance(value, Mapping) and depth < _MAX_DEPTH:
            members: dict[str, Any] = {}
            for key, member in value.items():
                if left <= 0:
                    members["..."] = f"[cut: {len(value)} entries]"
                    break
                name = text(key if isinstance(key, str) else described(key))
                members[name] = plain(member, depth + 1)
            return members
        if isinstance(value, list | tuple) and depth < _MAX_DEPTH:
            items: list[Any] = []
            for item in value:
                if left <= 0:
                    items.append(f"... [cut: {len(value)} entries]")
                    break
                items.append(plain(item, depth + 1))
            return items
        return text(described(value))

    return plain(value, 0)


def described(value: Any) -> str:
    """Return a short `repr` without addresses, which is the same in every run.

    >>> described(object())
    '<object object>'
    """
    return _ADDRESS.sub("", _REPR.repr(value))
