"""Converts any object of an environment or a tool to JSON of bounded size."""

from __future__ import annotations

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
    return _Walk(room).plain(value, 0)


class _Walk:
    def __init__(self, room: float) -> None:
        self.room = room

    def plain(self, value: Any, depth: int) -> Any:
        self.room -= 1
        if isinstance(value, str):
            return self.text(str(value))
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
            return self.members(value, depth)
        if isinstance(value, list | tuple) and depth < _MAX_DEPTH:
            return self.items(value, depth)
        return self.text(described(value))

    def text(self, text: str) -> str:
        room = max(self.room, 0)
        self.room -= len(text)
        if len(text) <= room:
            return text
        return f"{text[: int(room)]}... [cut: {len(text)} characters]"

    def members(self, mapping: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for key, value in mapping.items():
            if self.room <= 0:
                kept["..."] = f"[cut: {len(mapping)} entries]"
                break
            name = self.text(key if isinstance(key, str) else described(key))
            kept[name] = self.plain(value, depth + 1)
        return kept

    def items(self, values: list[Any] | tuple[Any, ...], depth: int) -> list[Any]:
        kept: list[Any] = []
        for value in values:
            if self.room <= 0:
                kept.append(f"... [cut: {len(values)} entries]")
                break
            kept.append(self.plain(value, depth + 1))
        return kept


def described(value: Any) -> str:
    """Return a short `repr` without addresses, which is the same in every run.

    >>> described(object())
    '<object object>'
    """
    return _ADDRESS.sub("", _REPR.repr(value))
