"""Tools and parsers from the settings: built-in names, a user's `file.py:name`, MCP servers."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from turnwise.errors import ConfigError, did_you_mean
from turnwise.tools.base import Tool
from turnwise.tools.parsers import ActionParser, get_parser
from turnwise.tools.registry import ToolRegistry
from turnwise.tools.server_entries import server_use, server_words, with_variables
from turnwise.user_code import import_object, require_use

ToolEntry: TypeAlias = str | Mapping[str, Any]
"""`calculator`, `tools.py:search`, `{tool: python, limits: {seconds: 2}}` or `{mcp: command}`."""

# Built-in tools; a new one is one line here.
BUILT_IN: dict[str, str] = {
    "calculator": "turnwise.tools.calculator:CalculatorTool",
    "python": "turnwise.tools.python_code:PythonCodeTool",
}


_RISKY = {"allow_unsafe", "packages"}
"""Options that need the user's consent, since they make a built-in tool less safe."""


def tools_by_name(
    entries: Sequence[ToolEntry], closing: contextlib.ExitStack | None = None
) -> ToolRegistry:
    """Returns the tools of these entries; `closing` ends the servers that are started.

    Without `closing`, MCP servers are refused: a connection cannot be sent to another process.
    """
    registry = ToolRegistry()
    for entry in entries:
        options = dict(entry) if isinstance(entry, Mapping) else {"tool": entry}
        if ("mcp" in options) == ("tool" in options):
            raise ConfigError(
                f"tools got {entry!r}, expected a name, {{tool: name, option: value}} or "
                "{mcp: command or URL}"
            )
        if "mcp" in options:
            if closing is None:
                raise ConfigError(
                    f"tools got {entry!r}: MCP servers are reached from one process only. Train "
                    "without Ray and VERL, or call the server in a tool of your own."
                )
            registry.register_all(_from_server(options.pop("mcp"), options, closing))
        else:
            registry.register_all(_from_target(str(options.pop("tool")), options))
    return registry


def parser_by_name(name: str) -> ActionParser | str:
    """Returns the name of a built-in parser as it is, and a user's `file.py:Name` as a parser."""
    if ":" not in name:
        get_parser(name)  # raises an error for an unknown name
        return name
    found = import_object(name, option="--parser or the setting parser")
    parser = found() if isinstance(found, type) and issubclass(found, ActionParser) else found
    if not isinstance(parser, ActionParser):
        raise ConfigError(
            f"parser got {name!r}, which is of type {type(parser).__name__}, expected a class "
            "derived from turnwise.ActionParser, or an object of one"
        )
    return parser


def _from_target(name: str, options: dict[str, Any]) -> Sequence[Tool | Callable[..., Any]]:
    if name not in BUILT_IN and ":" not in name:
        raise ConfigError(
            f"there is no tool {name!r}. {did_you_mean(name, BUILT_IN)} "
            "Your own is written path/to/file.py:name."
        )
    if name in BUILT_IN and options.keys() & _RISKY:
        require_use(_use(name, options))
    found = import_object(
        BUILT_IN.get(name, name),
        option="--tool or the setting tools",
        is_built_in=name in BUILT_IN,
    )
    if isinstance(found, ToolRegistry | list | tuple) and not options:
        return list(found)
    is_tool_class = isinstance(found, type) and issubclass(found, Tool)
    if is_tool_class or (options and callable(found)):
        return [_made(found, name, options)]
    if options:
        raise ConfigError(f"tool {name!r} takes no options, got {', '.join(options)}")
    return [found]


def uses_of(entry: ToolEntry) -> list[str]:
    """Returns what an entry runs besides importable code, in the words of `require_use`."""
    options = dict(entry) if isinstance(entry, Mapping) else {"tool": entry}
    if "mcp" in options:
        return [server_use(server_words(options.pop("mcp")), options)]
    name = options.pop("tool", None)
    return [_use(name, options)] if name in BUILT_IN and options.keys() & _RISKY else []


def _use(name: str, options: Mapping[str, Any]) -> str:
    if isinstance(options.get("packages"), list):  # relative folders made absolute
        options = {**options, "packages": [os.path.abspath(p) for p in options["packages"]]}
    return f"the tool {name} with {json.dumps(options, sort_keys=True, default=repr)}"


def _made(kind: Callable[..., Any], name: str, options: dict[str, Any]) -> Any:
    if name == "python" and isinstance(options.get("limits"), Mapping):
        from turnwise.tools.python_code import CodeLimits

        options = {**options, "limits": CodeLimits(**options["limits"])}
    try:
        inspect.signature(kind).bind(**options)
    except TypeError as error:
        raise ConfigError(f"tool {name!r} cannot be made with {options}: {error}") from None
    return kind(**options)


def _from_server(
    server: object, options: dict[str, Any], closing: contextlib.ExitStack
) -> Sequence[Tool]:
    from turnwise.tools.mcp_source import MCPTools

    words = server_words(server)
    require_use(server_use(words, options))
    only = options.pop("only", None)
    words, options = with_variables(words), with_variables(options)
    if words[0].startswith(("http://", "https://")):
        source = MCPTools.http(words[0], **options)
    else:
        source = MCPTools.stdio(words[0], words[1:], **options)
    tools = closing.enter_context(source).tools
    if only is None:
        return tools
    by_name = {tool.name: tool for tool in tools}
    if not isinstance(only, list) or not all(name in by_name for name in only):
        raise ConfigError(
            f"only got {only!r}, expected names of tools that the MCP server {source.name!r} has: "
            f"{', '.join(by_name)}"
        )
    return [by_name[name] for name in only]
