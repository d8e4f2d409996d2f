"""The tools of a run as the setting `tools` names them, and a hash of what they do."""

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
from turnwise.trainer.labels import callable_label, is_made_alone, object_label
from turnwise.user_code import fingerprint, reference_to


def tool_entries(tools: ToolRegistry | Iterable[Any]) -> list[str | dict[str, Any]]:
    """Return entries that make the same tools again; what has none is said to be lost.

    The tools of an MCP server are one entry, unless others stand between them: a prompt lists
    tools in their order.
    """
    entries: list[str | dict[str, Any]] = []
    found = [as_tool(tool) for tool in tools]
    for source, group in itertools.groupby(found, key=_server):
        mine = list(group)
        entry = None if source is None else source.entry
        if source is None or entry is None:
            entries += [_entry(tool) for tool in mine]
        elif mine == source.tools:
            entries.append(dict(entry))
        else:
            entries.append({**entry, "only": [tool.name for tool in mine]})
    return entries


def tools_description(tools: ToolRegistry | Iterable[Any] | None, config: ConfigStore) -> list[Any]:
    """Return what the tools do and what the model is told about them: docstrings count here.

    Servers count by their entries: they are not started for this.
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
    told = [tool.definition.to_openai() for tool in own]
    code = [fingerprint(tool.function) for tool in own]
    return [told, code, *([servers] if servers else [])]


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
    return reference.label if is_made_alone(tool) else object_label(tool)


def _python_entry(tool: PythonCodeTool) -> dict[str, Any]:
    entry: dict[str, Any] = {"tool": "python", "limits": dataclasses.asdict(tool.limits)}
    if tool.packages:
        is_all = tool.packages == package_folders(True)
        entry["packages"] = True if is_all else list(tool.packages)
    if not tool.isolated:  # it is only made so if the user allowed it
        entry["allow_unsafe"] = True
    return entry
