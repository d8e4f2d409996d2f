"""Tools that a model can call, the registry that calls them, and the parsers that find calls."""

from turnwise.tools.base import FunctionTool, Tool
from turnwise.tools.calculator import CalculatorTool
from turnwise.tools.calls import ToolCall
from turnwise.tools.context import ToolContext
from turnwise.tools.definition import ToolDefinition
from turnwise.tools.environment_step import EnvironmentStepTool
from turnwise.tools.marks import tool
from turnwise.tools.parsers import ActionParser, JSONActionParser, ParseResult
from turnwise.tools.registry import ToolRegistry
from turnwise.tools.results import ToolFailure, ToolResult

__all__ = [
    "ActionParser",
    "CalculatorTool",
    "EnvironmentStepTool",
    "FunctionTool",
    "JSONActionParser",
    "ParseResult",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolDefinition",
    "ToolFailure",
    "ToolRegistry",
    "ToolResult",
    "tool",
]
