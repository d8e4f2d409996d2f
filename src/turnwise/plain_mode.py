"""Plain mode: run the code that reads like the formula, without its faster forms.

Some packages have a `fast` package inside: other implementations of what stands around it, with the
same signatures and the same results up to rounding. `TURNWISE_PLAIN=1` runs without them, to find
out whether a fast form is to blame for something.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_VARIABLE = "TURNWISE_PLAIN"


class _Mode:
    is_plain = os.environ.get(_VARIABLE, "0") not in ("", "0")


def is_plain() -> bool:
    """Return whether this process runs without the fast forms."""
    return _Mode.is_plain


@contextmanager
def plain_mode(plain: bool = True) -> Iterator[None]:
    """Turn plain mode on or off in the block, here and in the processes that are started in it."""
    before = _Mode.is_plain, os.environ.get(_VARIABLE)
    _Mode.is_plain, os.environ[_VARIABLE] = plain, "1" if plain else "0"
    try:
        yield
    finally:
        _Mode.is_plain, value = before
        if value is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = value
