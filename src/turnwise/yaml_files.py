"""Reads and writes YAML so that every value comes back as it was."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from turnwise.errors import ConfigError
from turnwise.json_files import read_bytes


class _Loader(yaml.SafeLoader):
    """YAML in which 3e-5 is a number (YAML 1.1 would make it a string)."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            if key.value in lines:  # YAML forbids it; PyYAML would keep the last one in silence
                problem = f"the key {key.value!r} is given twice, first in line {lines[key.value]}"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            lines[key.value] = key.start_mark.line + 1
        return node


class _Dumper(yaml.SafeDumper):  # CSafeDumper fails at half a surrogate pair, and escapes emoji
    """Quotes the strings that `_Loader` would read as numbers."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        # Only in double quotes are all kinds of line breaks escaped.
        style = '"' if any(mark in text for mark in "\n\r\x85\u2028\u2029\ufeff") else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)


_FLOAT = re.compile(
    r"^[-+]?(\d[\d_]*(\.[\d_]*)?([eE][-+]?\d+)?|\.[\d_]+([eE][-+]?\d+)?|\.(inf|Inf|INF))$|^\.(nan|NaN|NAN)$"
)
for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the sections of a configuration file."""
    try:
        text = read_bytes(path).decode("utf-8-sig")  # some editors write a BOM
    except FileNotFoundError:
        near = sorted(p.name for p in path.parent.glob("*.y*ml")) if path.parent.is_dir() else []
        hint = f" In {path.parent} there are: {', '.join(near)}." if near else ""
        raise ConfigError(f"there is no configuration file {path}.{hint}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8: {error}. Save the file as UTF-8.") from None
    try:
        data = _parsed(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        what = getattr(error, "problem", None) or "it holds characters that are no text"
        raise ConfigError(f"{path} is not valid YAML{where}: {what}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{path} holds a {type(data).__name__}, expected sections: 'training:'")
    names = [name for name in data if not isinstance(name, str)]
    if names:
        raise ConfigError(
            f"{path} has a section {names[0]!r:.80}, expected names such as 'training:'"
        )
    return data


def find_line(path: Path, names: Sequence[str]) -> int | None:
    """Return the line of a file that sets a value, given the path of its names, or None."""
    try:
        node: Any = yaml.compose(read_bytes(path).decode("utf-8-sig"), Loader=_Loader)
    except (OSError, ValueError, yaml.YAMLError):
        return None
    line: int | None = None
    for name in names:
        entries = node.value if isinstance(node, yaml.MappingNode) else ()
        key, node = next((pair for pair in entries if pair[0].value == name), (None, None))
        if key is None:
            break
        line = key.start_mark.line + 1
    return line


def parse_value(text: str) -> Any:
    """Return the value of a piece of YAML; text that is no YAML stays text."""
    try:
        return _parsed(text)
    except yaml.YAMLError:
        return text


def _parsed(text: str) -> Any:
    """Return the value of a text; every problem is a `YAMLError`."""
    try:
        return yaml.load(text, Loader=_Loader)
    except (ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
        # Values that only look like dates or numbers: 2001-99-99, !!bool perhaps.
        raise yaml.MarkedYAMLError(problem=f"a value cannot be read: {error}") from error


def dump(data: dict[str, Any]) -> str:
    """Return a mapping as YAML, in its own order, one line per plain value."""
    return yaml.dump(data, Dumper=_Dumper, allow_unicode=True, sort_keys=False, width=1_000_000)
