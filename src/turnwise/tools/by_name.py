"""Tools and parsers from the settings: built-in names, a user's `file.py:name`, MCP servers.

Settings contain no secrets. In the entry of an MCP server, `${NAME}` stands for the value of an
environment variable, which is inserted when the server is started.
"""

import json
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

from turnwise.errors import ConfigError, did_you_mean
from turnwise.redaction import is_secret, without_secrets
from turnwise.tools.base import Tool
from turnwise.tools.parsers import ActionParser, get_parser
from turnwise.tools.registry import ToolRegistry
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
_VARIABLE = re.compile(r"\$\{(\w+)\}")


def tools_by_name(entries: Sequence[ToolEntry], closing: ExitStack | None = None) -> ToolRegistry:
    """Returns the tools of these entries; `closing` ends the servers that are started.

    Without `closing`, MCP servers are refused: a connection cannot be sent to another process.
    """
    registry = ToolRegistry()
    for entry in entries:
        options = dict(entry) if isinstance(entry, Mapping) else {"tool": entry}
        if ("mcp" in options) == ("tool" in options):
            expected = "a name, {tool: name, option: value} or {mcp: command or URL}"
            raise ConfigError(f"tools got {entry!r}, expected {expected}")
        if "mcp" in options and closing is None:
            fix = "Train without Ray and VERL, or call the server in a tool of your own."
            raise ConfigError(f"tools got {entry!r}: only one process reaches MCP servers. {fix}")
        for use in uses_to_allow(entry):
            require_use(use)
        if closing is not None and "mcp" in options:
            registry.register_all(_from_server(options.pop("mcp"), options, closing))
        else:
            registry.register_all(_from_target(str(options.pop("tool")), options))
    return registry


def parser_by_name(name: str) -> ActionParser | str:
    """Returns the name of a built-in parser as it is, and a user's `file.py:Name` as a parser."""
    if ":" not in name:
        get_parser(name)  # raises an error for an unknown name
        return name
    parser = import_object(name, option="--parser or the setting parser")
    if isinstance(parser, type) and issubclass(parser, ActionParser):
        parser = parser()
    if not isinstance(parser, ActionParser):
        expected = "a class derived from turnwise.ActionParser, or an object of one"
        raise ConfigError(f"parser got {name!r} ({type(parser).__name__}), expected {expected}")
    return parser


def _from_target(name: str, options: dict[str, Any]) -> Sequence[Tool | Callable[..., Any]]:
    is_built_in = name in BUILT_IN
    if not is_built_in and ":" not in name:
        hint = f"{did_you_mean(name, BUILT_IN)} Your own is written path/to/file.py:name."
        raise ConfigError(f"there is no tool {name!r}. {hint}")
    target = import_object(
        BUILT_IN.get(name, name), option="--tool or the setting tools", is_built_in=is_built_in
    )
    if isinstance(target, ToolRegistry | list | tuple) and not options:
        return list(target)
    if not options and not (isinstance(target, type) and issubclass(target, Tool)):
        return [target]
    try:
        return [target(**options)]
    except TypeError as error:
        raise ConfigError(f"tool {name!r} cannot be made with {options}: {error}") from error


def uses_to_allow(entry: ToolEntry) -> list[str]:
    """Returns what an entry runs besides importable code, in the words of `require_use`."""
    options: dict[str, Any] = dict(entry) if isinstance(entry, Mapping) else {"tool": entry}
    if "mcp" in options:
        words = server_words(options.pop("mcp"))
        if words[0].startswith(("http://", "https://")):
            return [f"the MCP server {words[0]}"]
        # With its folder: the same command elsewhere is other code.
        folder = Path(options.get("cwd") or ".").expanduser().resolve()
        variables = f" with {dict(options['env'])}" if options.get("env") else ""
        return [f"the MCP server {shlex.join(words)} in {folder}{variables}"]
    name = options.pop("tool", None)
    if name not in BUILT_IN or not options.keys() & _RISKY:
        return []
    if isinstance(options.get("packages"), list):  # relative folders made absolute
        options["packages"] = [os.path.abspath(path) for path in options["packages"]]
    return [f"the tool {name} with {json.dumps(options, sort_keys=True, default=repr)}"]


def _from_server(server: object, options: dict[str, Any], closing: ExitStack) -> Sequence[Tool]:
    from turnwise.tools.mcp_source import MCPTools

    only = options.pop("only", None)
    words, options = with_variables(server_words(server)), with_variables(options)
    if words[0].startswith(("http://", "https://")):
        source = MCPTools.http(words[0], **options)
    else:
        source = MCPTools.stdio(words[0], words[1:], **options)
    tools = {tool.name: tool for tool in closing.enter_context(source).tools}
    names = list(tools) if only is None else only
    if not isinstance(names, list) or not all(name in tools for name in names):
        expected = f"names of tools of the MCP server {source.name!r}: {', '.join(tools)}"
        raise ConfigError(f"only got {only!r}, expected {expected}")
    return [tools[name] for name in names]


def server_entry(words: Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entry of a server that was created in Python, with `${NAME}` for each secret.

    >>> server_entry(["search", "--key", "abc"], {"env": {"MODE": "fast", "API_TOKEN": "xyz"}})
    {'mcp': "search --key '${KEY}'", 'env': {'MODE': 'fast', 'API_TOKEN': '${API_TOKEN}'}}
    """
    entry: dict[str, Any] = {"mcp": shlex.join(without_secrets(words, _variable))}
    for name, value in options.items():
        if isinstance(value, Mapping):  # environment variables, or headers
            entry[name] = {
                key: _variable(key) if is_secret(key, str(text)) else str(text)
                for key, text in value.items()
            }
        elif value is not None or name == "timeout":  # None is a value there: no limit
            entry[name] = value
    return entry


def server_words(server: object) -> list[str]:
    """Returns the words of an entry's command; a URL is a single word."""
    words = shlex.split(server) if isinstance(server, str) else server
    if not isinstance(words, list) or not words or not all(isinstance(w, str) for w in words):
        raise ConfigError(f"mcp got {server!r}, expected a command or a URL of a server")
    return words


def with_variables(value: Any) -> Any:
    """Replaces `${NAME}` by the value of the environment variable, in all texts of an entry."""
    if isinstance(value, Mapping):
        return {key: with_variables(item) for key, item in value.items()}
    if isinstance(value, list):
        return [with_variables(item) for item in value]
    if not isinstance(value, str):
        return value
    for name in _VARIABLE.findall(value):
        if name not in os.environ:
            raise ConfigError(
                f"an MCP server needs ${{{name}}}, and there is no environment variable {name}. "
                f"Secrets are not kept in run folders. Set it: export {name}=..."
            )
    return _VARIABLE.sub(lambda match: os.environ[match[1]], value)


def _variable(name: str) -> str:
    word = re.sub(r"\W+", "_", name).strip("_").upper()
    return f"${{{word}}}"
