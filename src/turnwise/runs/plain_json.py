"""Converts any object of an environment or a tool to JSON."""

import json
import math
import re
import reprlib
from collections.abc import Mapping
from typing import Any

import numpy as np

_MAX_DEPTH = 16
_MOST_BITS = 14_000
"""Python refuses to write integers of more than 4,300 digits."""
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")

# Bounded in time too: the plain `repr` of a huge set would format all of it.
_REPR = reprlib.Repr()
_REPR.maxother = _REPR.maxstring = _REPR.maxlong = 400
_REPR.maxlist = _REPR.maxset = _REPR.maxfrozenset = _REPR.maxdict = _REPR.maxdeque = 20


def plain_json(value: Any, depth: int = 0) -> Any:
    """Return a value as JSON; other objects as their `repr`, which is cut and has no addresses.

    >>> plain_json({"price": np.float32(0.5), 3: (1, {2})})
    {'price': 0.5, '3': [1, '{2}']}
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str):
        return str(value)  # the text of an enum
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return f"<int of {value.bit_length()} bits>"
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping) and depth < _MAX_DEPTH:
        return {str(key): plain_json(member, depth + 1) for key, member in value.items()}
    if isinstance(value, list | tuple) and depth < _MAX_DEPTH:
        return [plain_json(item, depth + 1) for item in value]
    return _ADDRESS.sub("", _REPR.repr(value))


def json_text(value: Any, room: float = math.inf) -> str:
    """Return the JSON of any value; more than about `room` characters are cut.

    >>> json_text({"page": "abcdefgh", "score": 1}, 4)
    '{"page":"abcd","...":"[cut: 29 characters]"}'
    """
    plain = plain_json(value)
    text = _dumps(plain)
    if len(text) <= room:
        return text
    note = f"[cut: {len(text)} characters]"
    if not isinstance(plain, dict):
        return _dumps(f"{text[: int(room)]}... {note}")
    kept: dict[str, Any] = {}
    for name, member in plain.items():
        entry = _dumps(member)
        if len(entry) > room:
            kept[name] = (member if isinstance(member, str) else entry)[: int(room)]
            break
        kept[name] = member
        room -= len(entry)
    return _dumps({**kept, "...": note})


def _dumps(plain: Any) -> str:
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
