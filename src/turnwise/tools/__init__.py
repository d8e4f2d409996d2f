"""Tools that a model can call, the registry that calls them, and the parsers that find calls."""

from turnwise.tools.calls import ToolCall
from turnwise.tools.definition import FunctionTool, Tool, ToolDefinition, tool
from turnwise.tools.parsers import ActionParser, JSONActionParser, ParseResult
from turnwise.tools.registry import ToolRegistry

__all__ = [
    "ActionParser",
    "FunctionTool",
    "JSONActionParser",
    "ParseResult",
    "Tool",
    "ToolCall",
    "ToolDefinition",
    "ToolRegistry",
    "tool",
]
