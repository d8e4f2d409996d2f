"""The ways in which models write tool calls, one file each."""

from turnwise.tools.parsers.base import ActionParser, ParseResult
from turnwise.tools.parsers.json import JSONActionParser

__all__ = ["ActionParser", "JSONActionParser", "ParseResult"]
