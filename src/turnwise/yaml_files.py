"""YAML as people expect it, read and written so that every value comes back as it was."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from turnwise.errors import ConfigError


class _Loader(yaml.SafeLoader):
    """YAML as people expect it: 3e-5 is a number (YAML 1.1 would make it a string)."""


class _Dumper(yaml.SafeDumper):
    """Quotes the strings that `_Loader` would read as numbers."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        # Only between double quotes are line breaks of any alphabet written as escapes.
        style = '"' if any(mark in text for mark in "\n\r\x85\u2028\u2029\ufeff") else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)


_FLOAT = re.compile(
    r"^[-+]?(\d[\d_]*(\.[\d_]*)?([eE][-+]?\d+)?|\.[\d_]+([eE][-+]?\d+)?|\.(inf|Inf|INF))$|^\.(nan|NaN|NAN)$"
)
for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


def read_yaml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        near = sorted(p.name for p in path.parent.glob("*.y*ml")) if path.parent.is_dir() else []
        hint = f" In {path.parent} there are: {', '.join(near)}." if near else ""
        raise ConfigError(f"there is no configuration file {path}.{hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the configuration file {path}: {error}") from None
    try:
        data = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        what = getattr(error, "problem", None) or "it holds characters that are no text"
        raise ConfigError(f"{path} is not valid YAML{where}: {what}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(
            f"{path} holds a {type(data).__name__}, expected sections such as 'training:'"
        )
    return data


def parse_value(text: str) -> Any:
    """The value that a piece of YAML means; text that is no YAML is just text."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError:
        return text


def dump(data: dict[str, Any]) -> str:
    """A mapping as YAML, in its own order, one line for each plain value."""
    return yaml.dump(data, Dumper=_Dumper, allow_unicode=True, sort_keys=False, width=1_000_000)
