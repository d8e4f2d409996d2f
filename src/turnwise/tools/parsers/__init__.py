"""The formats in which models write tool calls, and the choice of one by name or chat template."""

import logging
import re
from collections.abc import Iterable
from functools import cache

from turnwise.errors import ConfigError, did_you_mean
from turnwise.tools.parsers.base import (
    ActionParser as ActionParser,
    FormatParser,
    ParseOutcome as ParseOutcome,
    ParseResult as ParseResult,
)
from turnwise.tools.parsers.formats import (
    DeepSeekParser,
    DeepSeekV31Parser,
    FunctionCallingParser as FunctionCallingParser,
    GLMParser,
    HarmonyParser,
    HermesParser,
    JSONActionParser as JSONActionParser,
    KimiParser,
    LlamaParser,
    MistralArgsParser,
    MistralParser,
    QwenCoderParser,
    ReActActionParser as ReActActionParser,
)
from turnwise.tools.types import ToolDefinition

_LOG = logging.getLogger("turnwise")

PARSERS: dict[str, type[FormatParser]] = {
    "json": JSONActionParser,
    "react": ReActActionParser,
    "openai": FunctionCallingParser,
    "hermes": HermesParser,
    "qwen": HermesParser,
    "qwen-coder": QwenCoderParser,
    "llama": LlamaParser,
    "mistral": MistralParser,
    "mistral-args": MistralArgsParser,
    "deepseek": DeepSeekParser,
    "deepseek-v3.1": DeepSeekV31Parser,
    "glm": GLMParser,
    "kimi": KimiParser,
    "harmony": HarmonyParser,
}

# The first format whose marks are all in the chat template; several share `<tool_call>`.
_MARKS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("harmony", ("<|channel|>", "functions.")),
    ("kimi", ("<|tool_calls_section_begin|>",)),
    ("glm", ("<arg_key>",)),
    ("qwen-coder", ("<function=", "<parameter=")),
    ("deepseek", ("<｜tool▁calls▁begin｜>", "```json")),
    ("deepseek-v3.1", ("<｜tool▁calls▁begin｜>",)),
    ("mistral-args", ("[TOOL_CALLS]", "[ARGS]")),
    ("mistral", ("[TOOL_CALLS]",)),
    ("hermes", ("<tool_call>",)),
    ("llama", ("<|python_tag|>",)),
    ("llama", ('{"name": function name, "parameters":',)),
)

# The most specific first: most formats contain plain JSON, which the last ones read too.
_BY_MARKS = [name for name, _ in _MARKS if name != "llama"] + ["react", "json", "openai", "llama"]

# A variable of that name: the template renders tools or calls.
_TOOLS = re.compile(r"\btools\b|\btool_calls?\b")


def get_parser(
    name: str = "auto", *, template: str | None = None, definitions: Iterable[ToolDefinition] = ()
) -> ActionParser:
    """Returns the parser of that name; "auto" chooses by the chat template.

    >>> get_parser("react").parse('Action: buy\\nAction Input: {"item": "tea"}').calls
    [ToolCall(name='buy', arguments={'item': 'tea'}, result=None, success=None)]
    """
    if name == "auto":
        return parser_for(template, definitions)
    if name not in PARSERS:
        hint = did_you_mean(name, [*PARSERS, "auto"])
        raise ConfigError(f"there is no parser {name!r} for tool calls. {hint}")
    return PARSERS[name](definitions)


def parser_for(template: str | None, definitions: Iterable[ToolDefinition] = ()) -> ActionParser:
    """Returns the parser for the format of a chat template; plain JSON if it has none.

    A template that takes tools and has an unknown format of calls is logged.

    >>> type(parser_for("... {{ '<tool_call>' }} ...")).__name__
    'HermesParser'
    """
    text = template or ""
    for name, marks in _MARKS:
        if all(mark in text for mark in marks):
            return PARSERS[name](definitions)
    if _TOOLS.search(text):
        _report_unknown(text)
    return JSONActionParser(definitions)


def other_format(
    text: str, parser: ActionParser, definitions: Iterable[ToolDefinition]
) -> str | None:
    """Returns the format in which a turn calls one of the tools, if it is not the parser's.

    >>> look = ToolDefinition("look", "Look around.")
    >>> turn = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
    >>> other_format(turn, get_parser("react"), [look])
    'hermes'
    """
    tools = list(definitions)
    names = {definition.name for definition in tools}
    if not any(name in text for name in names):  # true of most turns without a call
        return None
    for format_name in _BY_MARKS:
        kind = PARSERS[format_name]
        if not isinstance(parser, kind):
            calls = kind(tools).parse(text).calls
            if any(call.name in names for call in calls):
                return format_name
    return None


@cache
def _report_unknown(template: str) -> None:
    _LOG.warning(
        "The chat template takes tools, and none of the known ways of writing tool calls stands in "
        "it: parser 'auto' reads plain JSON such as %s. If the model writes its calls otherwise, "
        "they reach the environment as actions. Choose a parser: %s.",
        JSONActionParser().form,
        ", ".join(PARSERS),
    )
