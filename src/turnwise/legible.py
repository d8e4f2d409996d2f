"""Makes untrusted text safe for terminals and logs.

Control characters in texts of environments, models, tools, datasets and file names could move the
cursor, change colours, forge a line, or write into the reader's clipboard.
"""

import itertools
import logging

# Beyond ASCII; surrogates, which no encoding has, are among them.
_RANGES = ((0x7F, 0xA0), (0x202A, 0x202F), (0x2066, 0x206A), (0xD800, 0xE000))
_SYMBOLS = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"},
    **dict.fromkeys(itertools.chain(*itertools.starmap(range, _RANGES)), 0xFFFD),
}


def legible(text: str) -> str:
    """Return the text with symbols in place of control characters; lines and tabs stay.

    >>> legible("a\\x1b[31m")
    'a␛[31m'
    """
    return text if text.isprintable() else text.translate(_SYMBOLS)


class LegibleFormatter(logging.Formatter):
    """Formats records without control characters; further lines of a message are indented."""

    def format(self, record: logging.LogRecord) -> str:
        return legible(super().format(record)).replace("\n", "\n    ")
