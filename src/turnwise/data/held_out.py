"""Rows that are held out for evaluation, chosen by their content; rows that datasets share."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from torch.utils.data import Subset

from turnwise.data.dataset import PromptDataset

MOST_COMPARED = 100_000
"""Only so many rows of each dataset are compared, so that the first step is not delayed."""
MIN_HELD_OUT = 16
"""The least number of different rows for an evaluation."""
MIN_ROWS = 4 * MIN_HELD_OUT
"""With fewer different rows, none is held out: too few would be left to train on."""

_DERIVED = ("input_ids", "attention_mask")
"""Columns that a tokenizer adds."""


@dataclass(frozen=True)
class Split:
    """The rows to train on and the rows to evaluate on."""

    train: Any
    held_out: Any = None
    """None: too few rows to hold any out."""


def split_rows(rows: Any, fraction: float | None) -> Split:
    """Hold out this fraction of the rows, at least 16 different ones; None or 0 holds out none.

    A row is held out if a hash of its content is small. So the order of the rows does not matter,
    equal rows stay together, and adding rows never holds out one that was trained on. In a
    `CustomEnvDataset` the hash includes the seed, as a prompt need not show the whole task.

    >>> split = split_rows([{"prompt": str(number)} for number in range(1000)], 0.05)
    >>> len(split.train), len(split.held_out)
    (945, 55)
    """
    if not fraction or len(rows) < MIN_ROWS or _makes_items(rows):
        return Split(rows)
    keys = [_row_key(rows[number]) for number in range(len(rows))]
    different = sorted(set(keys))
    if len(different) < MIN_ROWS:
        return Split(rows)
    limit = max(int(fraction * 2**64), different[MIN_HELD_OUT - 1] + 1)
    train = [number for number, key in enumerate(keys) if key >= limit]
    held_out = [number for number, key in enumerate(keys) if key < limit]
    return Split(Subset(rows, train), Subset(rows, held_out)) if train else Split(rows)


def _row_key(row: Any, *, refuses_objects: bool = False) -> int:
    """Return a hash of a row's content, the same in every process and on every machine.

    What JSON cannot hold counts by its type alone, or raises `TypeError`.
    """

    def as_json(value: Any) -> Any:
        if isinstance(value, Mapping):
            return dict(value)
        if isinstance(value, bytes):
            return hashlib.sha256(value).hexdigest()
        if hasattr(value, "tolist"):  # an array or tensor
            return value.tolist()
        name = type(value).__qualname__  # not its `repr`, which may have an address
        if refuses_objects:
            raise TypeError(f"{name} has no JSON")
        return name

    if isinstance(row, Mapping):
        row = {name: value for name, value in row.items() if name not in _DERIVED}
    text = json.dumps(row, sort_keys=True, default=as_json)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])


def _makes_items(rows: Any) -> bool:
    """Return whether a user's `__getitem__` makes the items, which may differ each time."""
    return isinstance(rows, PromptDataset) and rows.makes_items


def shared_rows(rows: Any, others: Any) -> tuple[int, int]:
    """Return how many rows are also among the others, and how many were compared, as JSON.

    Rows with a value that JSON cannot hold (an image) are not compared, nor are items that a
    user's `__getitem__` makes.

    >>> shared_rows([{"a": 1, "b": 2}, {"a": 3}], [{"b": 2, "a": 1}])
    (1, 2)
    """

    def keys(compared: Any) -> Iterator[int]:
        if not _makes_items(compared):
            for number in range(min(len(compared), MOST_COMPARED)):
                with suppress(TypeError):
                    yield _row_key(compared[number], refuses_objects=True)

    mine, known = list(keys(rows)), set(keys(others))
    return sum(key in known for key in mine), len(mine)
