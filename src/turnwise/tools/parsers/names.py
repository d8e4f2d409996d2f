"""Names of tools and arguments where they stand bare, not inside of JSON.

A name that could be misread there is written as a JSON string, in quotes.
"""

from __future__ import annotations

import re

from turnwise.tools.calls import ToolCall
from turnwise.tools.parsers.json_text import check_name, read_json, write_json

_SAFE = re.compile(r"[\w./-]++")
# Markdown before and after a name is not part of it.
_BARE = re.compile(r'[ \t*]*+`?+([^<>\[{\n"`]*+)')
_AFTER = " \t\r*"


def write_name(call: ToolCall) -> str:
    """The call's name, in quotes if need be."""
    return write_bare(check_name(call), call.name)


def write_bare(name: str, tool: str) -> str:
    return name if _SAFE.fullmatch(name) else write_json(name, tool)


def read_name(text: str, start: int) -> tuple[str, int]:
    """The name at `start` and where it ends; empty if there is none."""
    found = _BARE.match(text, start)
    assert found is not None  # it matches the empty text too
    name, end = found.group(1).rstrip(_AFTER), found.end()
    if name or not text.startswith('"', end):
        return name, end
    value, end, problem = read_json(text, end)
    return (value if problem is None else ""), end
