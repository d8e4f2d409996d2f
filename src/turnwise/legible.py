"""Foreign text on its way to a terminal or a log: no character of it may act there.

What environments, models, tools, datasets and file names say could else move the cursor, change
colours, forge a line, or write into the clipboard of whoever reads it.
"""

from __future__ import annotations

import logging

_PICTURES = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"},
    **dict.fromkeys([*range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD),
}


def legible(text: str) -> str:
    """The text with pictures in the place of control characters; lines and tabs stay.

    >>> legible("a\\x1b[31m")
    'a␛[31m'
    """
    return text if text.isprintable() else text.translate(_PICTURES)


class LegibleFormatter(logging.Formatter):
    """Formats a record such that nothing in it acts; further lines of a message are indented, so
    that none looks like a record of its own."""

    def format(self, record: logging.LogRecord) -> str:
        return legible(super().format(record)).replace("\n", "\n    ")
