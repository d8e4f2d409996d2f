"""Rows that are held out for evaluation: chosen by what is in a row, not by where it stands."""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

from turnwise.data.dataset import PromptDataset

MIN_HELD_OUT = 16
"""Different rows that an evaluation needs at least."""
MIN_ROWS = 4 * MIN_HELD_OUT
"""With fewer different rows too few would be left to train on."""

_BITS = 64
_DERIVED = ("input_ids", "attention_mask")
"""Columns that a tokenizer adds."""


class RowSubset(Sequence[Any]):
    """Some rows of a dataset, by their numbers; `source` is the dataset."""

    def __init__(self, source: Any, numbers: Sequence[int]) -> None:
        self.source = source
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return RowSubset(self.source, self.numbers[index])
        return self.source[self.numbers[operator.index(index)]]


@dataclass(frozen=True)
class Split:
    """The rows to train on and those to evaluate on."""

    train: Any
    held_out: Any = None
    """None: too few rows to hold any out."""


def split_rows(rows: Any, fraction: float | None) -> Split:
    """Hold out this share of the rows, at least 16 different ones; None or 0 holds out none.

    A row is held out if a hash of its content is small. So the order of the rows does not matter,
    and equal rows stay together. Where rows are added, none that was trained on becomes held out.
    Of a `CustomEnvDataset` a row is its seed, since an opening need not show the whole task.

    >>> split = split_rows([{"prompt": str(number)} for number in range(1000)], 0.05)
    >>> len(split.train), len(split.held_out)
    (945, 55)
    """
    if not fraction or len(rows) < MIN_ROWS or makes_items(rows):
        return Split(rows)
    keys = [row_key(rows[number]) for number in range(len(rows))]
    different = sorted(set(keys))
    if len(different) < MIN_ROWS:
        return Split(rows)
    limit = max(int(fraction * 2**_BITS), different[MIN_HELD_OUT - 1] + 1)
    train = [number for number, key in enumerate(keys) if key >= limit]
    held_out = [number for number, key in enumerate(keys) if key < limit]
    return Split(RowSubset(rows, train), RowSubset(rows, held_out)) if train else Split(rows)


def row_key(row: Any) -> int:
    """A hash of what is in a row, the same in every process and on every machine."""
    if isinstance(row, Mapping):
        row = {name: value for name, value in row.items() if name not in _DERIVED}
    text = json.dumps(_plain(row), sort_keys=True)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[: _BITS // 8])


def _plain(value: Any) -> Any:
    """What JSON can hold. Of anything else only its type counts: a `repr` may hold an address."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    if hasattr(value, "tolist"):  # an array or a tensor
        return value.tolist()
    return type(value).__qualname__


def makes_items(rows: Any) -> bool:
    """Whether the items come from a user's method, which may give others each time."""
    return isinstance(rows, PromptDataset) and rows.makes_items
