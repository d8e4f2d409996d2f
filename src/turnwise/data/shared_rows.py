"""Rows that two datasets have in common, by what is in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from turnwise.data.held_out import makes_items, row_key

MOST_COMPARED = 100_000
"""Of each dataset the first rows are compared, so that a run does not wait for its first step."""


@dataclass(frozen=True)
class SharedRows:
    """How many rows of one dataset are also in another."""

    num_shared: int
    num_compared: int
    """Rows of the first dataset that were compared."""


def shared_rows(rows: Any, others: Any) -> SharedRows:
    """Count the rows that are also among the others: equal as JSON, wherever they come from.

    Rows with a value that JSON cannot hold (an image) are not compared, and neither are items that
    a dataset makes anew each time.

    >>> shared_rows([{"a": 1, "b": 2}, {"a": 3}], [{"b": 2, "a": 1}])
    SharedRows(num_shared=1, num_compared=2)
    """
    keys = list(_keys(rows))
    known = set(_keys(others)) if keys else set()
    return SharedRows(sum(key in known for key in keys), len(keys))


def _keys(rows: Any) -> Iterator[int]:
    if makes_items(rows):
        return
    for number in range(min(len(rows), MOST_COMPARED)):
        row = rows[number]
        if _is_content(row):
            yield row_key(row)


def _is_content(value: Any) -> bool:
    """Whether all of a value is compared; of other objects `row_key` knows the type alone."""
    if isinstance(value, Mapping):
        return all(map(_is_content, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_content, value))
    return value is None or isinstance(value, str | int | float | bytes) or hasattr(value, "tolist")
