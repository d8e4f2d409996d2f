"""Tools from a configuration file: built-in names, a user's `file.py:name`, MCP servers."""

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

# The one line where a built-in tool is named.
BUILT_IN: dict[str, str] = {
    "calculator": "turnwise.tools.calculator:CalculatorTool",
    "python": "turnwise.tools.python_code:PythonCodeTool",
}


_RISKY = {"allow_unsafe", "packages"}
"""Options that let a built-in tool reach more than it should for settings of somebody else."""


def tools_by_name(
    entries: Sequence[ToolEntry], closing: contextlib.ExitStack | None = None
) -> ToolRegistry:
    """Return the tools that the entries name; `closing` ends the servers that were started.

    Without it there must be none: a connection to a server cannot go to another process.
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
    """Return the name of a known parser as it is, and a user's `file.py:Name` as a parser."""
    if ":" not in name:
        get_parser(name)  # a name that there is not is an error
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
    """Return what an entry runs besides importable code, as `require_use` asks about it."""
    options = dict(entry) if isinstance(entry, Mapping) else {"tool": entry}
    if "mcp" in options:
        return [server_use(server_words(options.pop("mcp")), options)]
    name = options.pop("tool", None)
    return [_use(name, options)] if name in BUILT_IN and options.keys() & _RISKY else []


def _use(name: str, options: Mapping[str, Any]) -> str:
    if isinstance(options.get("packages"), list):  # the same folders, wherever they are named from
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
