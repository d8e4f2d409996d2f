"""The tools of a run as entries of the setting `tools`, and what identifies their behaviour."""

from __future__ import annotations

import dataclasses
import itertools
import shlex
from collections.abc import Iterable
from typing import Any

from turnwise.config import ConfigStore
from turnwise.tools import CalculatorTool, FunctionTool, PythonCodeTool, Tool, ToolRegistry
from turnwise.tools.base import as_tool
from turnwise.tools.by_name import ToolEntry, tools_by_name
from turnwise.tools.mcp_source import MCPTool, MCPTools
from turnwise.tools.python_code.tool import package_folders
from turnwise.tools.server_entries import server_words
from turnwise.trainer.labels import callable_label, is_default_instance, object_label
from turnwise.user_code import fingerprint, reference_to


def tool_entries(tools: ToolRegistry | Iterable[Any]) -> list[str | dict[str, Any]]:
    """Return entries from which the same tools can be made; others get a label.

    The tools of an MCP server are one entry, unless other tools are between them: a prompt lists
    tools in order.
    """
    entries: list[str | dict[str, Any]] = []
    found = [as_tool(tool) for tool in tools]
    for source, group in itertools.groupby(found, key=_server):
        own = list(group)
        entry = None if source is None else source.entry
        if source is None or entry is None:
            entries += [_entry(tool) for tool in own]
        elif own == source.tools:
            entries.append(dict(entry))
        else:
            entries.append({**entry, "only": [tool.name for tool in own]})
    return entries


def tools_description(tools: ToolRegistry | Iterable[Any] | None, config: ConfigStore) -> list[Any]:
    """Return the definitions that the model sees and the code of the tools, to be hashed.

    MCP servers are identified by their entries: they are not started for this.
    """
    if tools is None:
        own = list(tools_by_name([entry for entry in config.tools if "mcp" not in entry]))
        entries: list[ToolEntry] = list(config.tools)
    else:
        every = [as_tool(tool) for tool in tools]
        own = [tool for tool in every if _server(tool) is None]
        entries = list(tool_entries(every))
    servers = [
        {**entry, "mcp": shlex.join(server_words(entry["mcp"])), "cwd": None}
        for entry in entries
        if not isinstance(entry, str) and "mcp" in entry
    ]
    definitions = [tool.definition.to_openai() for tool in own]
    code = [fingerprint(tool.function) for tool in own]
    return [definitions, code, *([servers] if servers else [])]


def _server(tool: Tool) -> MCPTools | None:
    return tool.source if isinstance(tool, MCPTool) else None


def _entry(tool: Tool) -> str | dict[str, Any]:
    if type(tool) is CalculatorTool:
        return "calculator"
    if isinstance(tool, FunctionTool):
        return callable_label(tool.function)
    if type(tool) is PythonCodeTool:
        return _python_entry(tool)
    reference = reference_to(tool)
    return reference.label if is_default_instance(tool) else object_label(tool)


def _python_entry(tool: PythonCodeTool) -> dict[str, Any]:
    entry: dict[str, Any] = {"tool": "python", "limits": dataclasses.asdict(tool.limits)}
    if tool.packages:
        is_all = tool.packages == package_folders(True)
        entry["packages"] = True if is_all else list(tool.packages)
    if not tool.isolated:  # only with the permission of the user
        entry["allow_unsafe"] = True
    return entry
