"""The formats in which models write tool calls, one file each."""

from turnwise.tools.parsers.base import ActionParser, ParseOutcome, ParseResult
from turnwise.tools.parsers.choose import (
    PARSERS,
    get_parser,
    other_format,
    parser_for,
)
from turnwise.tools.parsers.deepseek import DeepSeekParser, DeepSeekV31Parser
from turnwise.tools.parsers.function_calling import FunctionCallingParser
from turnwise.tools.parsers.glm import GLMParser
from turnwise.tools.parsers.harmony import HarmonyParser
from turnwise.tools.parsers.hermes import HermesParser
from turnwise.tools.parsers.json import JSONActionParser
from turnwise.tools.parsers.kimi import KimiParser
from turnwise.tools.parsers.llama import LlamaParser
from turnwise.tools.parsers.mistral import MistralArgsParser, MistralParser
from turnwise.tools.parsers.qwen_coder import QwenCoderParser
from turnwise.tools.parsers.react import ReActActionParser

__all__ = [
    "PARSERS",
    "ActionParser",
    "DeepSeekParser",
    "DeepSeekV31Parser",
    "FunctionCallingParser",
    "GLMParser",
    "HarmonyParser",
    "HermesParser",
    "JSONActionParser",
    "KimiParser",
    "LlamaParser",
    "MistralArgsParser",
    "MistralParser",
    "ParseOutcome",
    "ParseResult",
    "QwenCoderParser",
    "ReActActionParser",
    "get_parser",
    "other_format",
    "parser_for",
]
