"""Converts any object of an environment or a tool to JSON."""

import json
import math
import re
import reprlib
from collections.abc import Mapping
from itertools import islice
from typing import Any

import numpy as np

_MAX_DEPTH = 16
_MOST_BITS = 14_000
"""Python refuses to write integers of more than 4,300 digits."""
_MOST_ELEMENTS = 400
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")

# Bounded in time too: the plain `repr` of a huge list would format all of it.
_REPR = reprlib.Repr()
_REPR.maxother = _REPR.maxstring = _REPR.maxlong = 400
_REPR.maxlist = _REPR.maxset = _REPR.maxfrozenset = _REPR.maxdict = _REPR.maxdeque = 20


def plain_json(value: Any) -> Any:
    """Return a value as JSON; other objects as their `repr`, which is cut and has no addresses.

    >>> plain_json({"price": np.float32(0.5), 3: (1, {2})})
    {'price': 0.5, '3': [1, '{2}']}
    """
    return _Converter(math.inf).convert(value)


def json_text(value: Any, room: float = math.inf) -> str:
    """Return the JSON of any value; what is beyond about `room` characters is left out.

    That takes no longer for a huge value than for one of this size.

    >>> json_text({"page": "abcdefgh", "score": 1}, 12)
    '{"page":"abcd","...":"[cut after 12 characters]"}'
    """
    converter = _Converter(room)
    plain = converter.convert(value)
    if converter.room < 0:
        note = f"[cut after {room:,.0f} characters]"
        if isinstance(plain, dict):
            plain["..."] = note
        elif isinstance(plain, list):
            plain.append(f"... {note}")
        else:
            plain = f"{plain}... {note}"
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":"))


class _Converter:
    """Converts a value to JSON, and stops when that is as long as it may be."""

    def __init__(self, room: float) -> None:
        self.room = room
        """How many characters may still come; negative: something was left out."""

    def convert(self, value: Any, depth: int = 0) -> Any:
        self.room -= 2  # quotes or brackets
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, Mapping) and depth < _MAX_DEPTH:
            members = {}
            for key, member in value.items():
                if self.room < 0:
                    break
                self.room -= len(name := str(key))
                members[name] = self.convert(member, depth + 1)
            return members
        if isinstance(value, list | tuple) and depth < _MAX_DEPTH:
            items = []
            for item in value:
                if self.room < 0:
                    break
                items.append(self.convert(item, depth + 1))
            return items
        if isinstance(value, float) and not math.isfinite(value):
            value = str(value)
        if isinstance(value, int) and value.bit_length() > _MOST_BITS:
            value = f"<int of {value.bit_length()} bits>"
        if value is None or isinstance(value, bool | int | float):
            self.room -= len(str(value))
            return value
        text = str(value) if isinstance(value, str) else _short_repr(value)  # `str`: of an enum
        kept = text if len(text) <= self.room else text[: max(int(self.room), 0)]
        self.room -= len(text)
        return kept


def _short_repr(value: Any) -> str:
    # These are formatted, or sorted, as a whole before their `repr` is cut.
    if isinstance(value, bytes | bytearray):
        value = value[:_MOST_ELEMENTS]
    elif isinstance(value, set | frozenset) and len(value) > _MOST_ELEMENTS:
        value = set(islice(value, _MOST_ELEMENTS))
    return _ADDRESS.sub("", _REPR.repr(value))
