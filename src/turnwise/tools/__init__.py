"""Tools that a model can call, the registry that calls them, and the parsers that find calls."""

from turnwise.tools.base import FunctionTool, Tool, tool
from turnwise.tools.calculator import CalculatorTool
from turnwise.tools.mcp_source import MCPTools
from turnwise.tools.parsers import (
    PARSERS,
    ActionParser,
    FunctionCallingParser,
    JSONActionParser,
    ParseOutcome,
    ParseResult,
    ReActActionParser,
    get_parser,
    parser_for,
)
from turnwise.tools.python_code import CodeLimits, PythonCodeTool
from turnwise.tools.registry import ToolRegistry
from turnwise.tools.thoughts import answer_of
from turnwise.tools.types import ToolCall, ToolContext, ToolDefinition, ToolFailure, ToolResult

__all__ = [
    "PARSERS",
    "ActionParser",
    "CalculatorTool",
    "CodeLimits",
    "FunctionCallingParser",
    "FunctionTool",
    "JSONActionParser",
    "MCPTools",
    "ParseOutcome",
    "ParseResult",
    "PythonCodeTool",
    "ReActActionParser",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolDefinition",
    "ToolFailure",
    "ToolRegistry",
    "ToolResult",
    "answer_of",
    "get_parser",
    "parser_for",
    "tool",
]
