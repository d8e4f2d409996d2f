"""What a docstring says of a function and of each of its arguments."""

from __future__ import annotations

import inspect
import re

_SECTION = re.compile(
    r"^(args|arguments|parameters|returns?|yields?|raises|examples?|notes?):\s*$", re.IGNORECASE
)
_ENTRY = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")


def split_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """What a docstring says before its sections, and what `Args:` says of each argument.

    >>> split_docstring('''Add.
    ...
    ...     Args:
    ...         a: The first.
    ... ''')
    ('Add.', {'a': 'The first.'})
    """
    summary: list[str] = []
    arguments: dict[str, str] = {}
    section, indent, current = "", 0, ""
    for line in inspect.cleandoc(doc).splitlines():
        text = line.strip()
        depth = len(line) - len(line.lstrip())
        header = _SECTION.match(line)
        if header:
            section, indent, current = header.group(1).lower(), 0, ""
        elif not section or (text and depth == 0):
            section = ""
            summary.append(text)
        elif section in ("args", "arguments", "parameters") and text:
            indent = indent or depth
            entry = _ENTRY.match(text) if depth <= indent else None
            if entry:
                current = entry.group(1)
                arguments[current] = entry.group(2)
            elif current:
                arguments[current] = f"{arguments[current]} {text}".strip()
    return " ".join(line for line in summary if line), arguments
