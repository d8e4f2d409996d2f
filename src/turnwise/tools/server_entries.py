"""MCP servers in the settings: `{mcp: command or URL, option: value}`.

Settings contain no secrets. `${NAME}` stands for the value of an environment variable, which is
inserted when the server is started.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from turnwise.errors import ConfigError
from turnwise.redaction import is_secret, without_secrets

ServerEntry: TypeAlias = dict[str, Any]

_VARIABLE = re.compile(r"\$\{(\w+)\}")


def server_entry(words: Sequence[str], options: Mapping[str, Any]) -> ServerEntry:
    """Returns the entry of a server that was created in Python, with `${NAME}` for each secret.

    >>> server_entry(["search", "--key", "abc"], {"env": {"MODE": "fast", "API_TOKEN": "xyz"}})
    {'mcp': "search --key '${KEY}'", 'env': {'MODE': 'fast', 'API_TOKEN': '${API_TOKEN}'}}
    """
    entry: ServerEntry = {"mcp": shlex.join(without_secrets(words, _variable))}
    for name, value in options.items():
        if value is not None or name == "timeout":  # None is a value there: no limit
            entry[name] = _without_secrets(value) if isinstance(value, Mapping) else value
    return entry


def _without_secrets(values: Mapping[str, str]) -> dict[str, str]:
    """Replaces secrets in environment variables or headers by `${NAME}`."""
    return {
        key: _variable(key) if is_secret(key, str(text)) else str(text)
        for key, text in values.items()
    }


def server_words(server: object) -> list[str]:
    """Returns the words of an entry's command; a URL is a single word."""
    words = shlex.split(server) if isinstance(server, str) else server
    if not isinstance(words, list) or not words or not all(isinstance(w, str) for w in words):
        raise ConfigError(f"mcp got {server!r}, expected a command or a URL of a server")
    return words


def server_use(words: Sequence[str], options: Mapping[str, Any]) -> str:
    """Returns what is run, with its folder: the same command elsewhere is other code."""
    if words[0].startswith(("http://", "https://")):
        return f"the MCP server {words[0]}"
    folder = Path(options.get("cwd") or ".").expanduser().resolve()
    environment = options.get("env")
    variables = f" with {dict(environment)}" if environment else ""
    return f"the MCP server {shlex.join(words)} in {folder}{variables}"


def with_variables(value: Any) -> Any:
    """Replaces `${NAME}` by the value of the environment variable, in all texts of an entry."""
    if isinstance(value, str):
        return _VARIABLE.sub(_value_of, value)
    if isinstance(value, Mapping):
        return {key: with_variables(item) for key, item in value.items()}
    return [with_variables(item) for item in value] if isinstance(value, list) else value


def _variable(name: str) -> str:
    word = re.sub(r"\W+", "_", name).strip("_").upper()
    return f"${{{word}}}"


def _value_of(match: re.Match[str]) -> str:
    if match[1] not in os.environ:
        raise ConfigError(
            f"an MCP server needs {match[0]}, and there is no environment variable {match[1]}. "
            f"Secrets are not kept in run folders. Set it: export {match[1]}=..."
        )
    return os.environ[match[1]]
