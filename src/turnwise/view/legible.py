"""Text from outside in a page: none of it is markup, and none of it is invisible."""

from __future__ import annotations

import html
import re
import unicodedata

# Control characters (those of terminals among them), marks that turn the order of writing round,
# characters without width, separators of lines that are none, halves of pairs, and what is
# not assigned: a reader would not see them, or see something else.
_INVISIBLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_NONCHARACTER = re.compile("[\ufdd0-\ufdef\ufffe\uffff]")
_PLAIN = re.compile(r"[\x20-\x7e\n\t]*")


def is_odd(character: str) -> bool:
    """Return whether a reader would not see a character as what it is.

    >>> [is_odd(c) for c in "a\\n\\x1b\\u202e\\u200b"]
    [False, False, True, True, True]
    """
    if character in "\n\t":
        return False
    if unicodedata.category(character) in _INVISIBLE:
        return True
    return _NONCHARACTER.match(character) is not None or 0xE0100 <= ord(character) <= 0xE01EF


def visible_text(text: str) -> str:
    """Return text with odd characters as their numbers, for places without markup.

    >>> visible_text("a\\x1b[31m")
    'a⟦U+001B⟧[31m'
    """
    if _PLAIN.fullmatch(text):
        return text
    return "".join(f"⟦{code_of(c)}⟧" if is_odd(c) else c for c in text)


def visible_html(text: str) -> str:
    """Return text as HTML: escaped, odd characters in boxes with their numbers.

    >>> visible_html("<b>")
    '&lt;b&gt;'
    """
    if _PLAIN.fullmatch(text):
        return html.escape(text)
    return "".join(_box(c) if is_odd(c) else html.escape(c) for c in text)


def visible_attribute(text: str) -> str:
    """Return text as the value of an attribute in double quotes."""
    return html.escape(visible_text(text), quote=True)


def code_of(character: str) -> str:
    return f"U+{ord(character):04X}"


def _box(character: str) -> str:
    code = code_of(character)
    name = unicodedata.name(character, "control character")
    return f'<span class="odd" title="{html.escape(name, quote=True)}">{code}</span>'
