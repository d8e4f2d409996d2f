"""Tools that a model can call, the registry that calls them, and the parsers that find calls."""

from turnwise.tools.base import FunctionTool, Tool
from turnwise.tools.calculator import CalculatorTool
from turnwise.tools.calls import ToolCall
from turnwise.tools.context import ToolContext
from turnwise.tools.definition import ToolDefinition
from turnwise.tools.environment_step import EnvironmentStepTool
from turnwise.tools.marks import tool
from turnwise.tools.parsers import (
    PARSERS,
    ActionParser,
    DeepSeekParser,
    DeepSeekV31Parser,
    FunctionCallingParser,
    GLMParser,
    HermesParser,
    JSONActionParser,
    LlamaParser,
    MistralArgsParser,
    MistralParser,
    ParseOutcome,
    ParseResult,
    QwenCoderParser,
    ReActActionParser,
    get_parser,
    parser_for,
)
from turnwise.tools.registry import ToolRegistry
from turnwise.tools.results import ToolFailure, ToolResult

__all__ = [
    "PARSERS",
    "ActionParser",
    "CalculatorTool",
    "DeepSeekParser",
    "DeepSeekV31Parser",
    "EnvironmentStepTool",
    "FunctionCallingParser",
    "FunctionTool",
    "GLMParser",
    "HermesParser",
    "JSONActionParser",
    "LlamaParser",
    "MistralArgsParser",
    "MistralParser",
    "ParseOutcome",
    "ParseResult",
    "QwenCoderParser",
    "ReActActionParser",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolDefinition",
    "ToolFailure",
    "ToolRegistry",
    "ToolResult",
    "get_parser",
    "parser_for",
    "tool",
]
