"""An MCP server as a configuration file names it: `{mcp: command or URL, option: value}`.

Secrets do not stand in such a file. In their place stands `${NAME}`, the value of an environment
variable, which is put in when the server is started.
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
    """Return the entry of a server that was given in Python, with `${NAME}` for each secret.

    >>> server_entry(["search", "--key", "abc"], {"env": {"MODE": "fast", "API_TOKEN": "xyz"}})
    {'mcp': "search --key '${KEY}'", 'env': {'MODE': 'fast', 'API_TOKEN': '${API_TOKEN}'}}
    """
    entry: ServerEntry = {"mcp": shlex.join(without_secrets(words, _variable))}
    for name, value in options.items():
        if value is not None or name == "timeout":  # there, None is a value: no limit
            entry[name] = _without_secrets(value) if isinstance(value, Mapping) else value
    return entry


def _without_secrets(values: Mapping[str, str]) -> dict[str, str]:
    """Environment variables or headers, with `${NAME}` for those that hold a secret."""
    return {
        key: _variable(key) if is_secret(key, str(text)) else str(text)
        for key, text in values.items()
    }


def server_words(server: object) -> list[str]:
    """Return the words of an entry's command; a URL is a single one."""
    words = shlex.split(server) if isinstance(server, str) else server
    if not isinstance(words, list) or not words or not all(isinstance(w, str) for w in words):
        raise ConfigError(f"mcp got {server!r}, expected a command or a URL of a server")
    return words


def server_use(words: Sequence[str], options: Mapping[str, Any]) -> str:
    """Return what is run, in words: the same command in another folder is other code."""
    if words[0].startswith(("http://", "https://")):
        return f"the MCP server {words[0]}"
    folder = Path(options.get("cwd") or ".").expanduser().resolve()
    environment = options.get("env")
    beside = f" with {dict(environment)}" if environment else ""
    return f"the MCP server {shlex.join(words)} in {folder}{beside}"


def with_variables(value: Any) -> Any:
    """Put the values of environment variables where `${NAME}` stands, in all texts of an entry."""
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
