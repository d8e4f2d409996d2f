"""Plain mode: run the code that reads like the formula, without its faster forms.

Some packages have a `fast` package inside: other implementations of what stands around it, with the
same signatures and the same results up to rounding. `TURNWISE_PLAIN=1` runs without them, to find
out whether a fast form is to blame for something.
"""

from __future__ import annotations

import os

_VARIABLE = "TURNWISE_PLAIN"


class _Mode:
    is_plain = os.environ.get(_VARIABLE, "0") not in ("", "0")


def is_plain() -> bool:
    """Return whether this process runs without the fast forms."""
    return _Mode.is_plain


def set_plain(plain: bool) -> None:
    """Turn plain mode on or off for this process and for the processes that it starts."""
    _Mode.is_plain = plain
    os.environ[_VARIABLE] = "1" if plain else "0"
