"""Reads and writes YAML so that every value comes back as it was."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from turnwise.bounded_files import MAX_DEPTH, is_deeper, read_bytes
from turnwise.errors import ConfigError

MAX_BYTES = 2**20
_MAX_NODES = 100_000
"""Values in a file, with every alias expanded."""


class _Loader(yaml.SafeLoader):
    """YAML in which 3e-5 is a number (YAML 1.1 would make it a string).

    A few lines of aliases of aliases can expand to billions of values, so values are counted while
    they are read.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._num_nodes = 0
        self._depth = 0
        self._sizes: dict[yaml.Node, int] = {}
        """Complete nodes, with the number of their values."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        is_alias = self.check_event(yaml.AliasEvent)
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        before = self._num_nodes
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _refused(f"values are nested more than {MAX_DEPTH} deep", mark)
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        if is_alias and node is not None and node not in self._sizes:
            raise _refused("an alias stands inside of what it names", mark)
        self._num_nodes += self._sizes[node] if is_alias and node is not None else 1
        if self._num_nodes > _MAX_NODES:
            raise _refused(f"it stands for more than {_MAX_NODES:,} values", mark)
        if node is not None:
            self._sizes[node] = self._num_nodes - before
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else None
            if name is None or key.tag == "tag:yaml.org,2002:merge":
                continue
            if name in lines:  # YAML forbids it, and PyYAML would keep the last one in silence
                first = f"the first one is in line {lines[name]}"
                raise _refused(f"the key {name!r} is given twice, {first}", key.start_mark)
            lines[name] = key.start_mark.line + 1
        return node


def _refused(problem: str, mark: Any) -> yaml.YAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


class _Dumper(yaml.SafeDumper):
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


def read_yaml(path: Path, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """Return the sections of a configuration file."""
    try:
        text = read_bytes(path, max_bytes).decode("utf-8-sig")  # some editors write a BOM
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
        raise ConfigError(
            f"{path} holds a {type(data).__name__}, expected sections such as 'training:'"
        )
    names = [name for name in data if not isinstance(name, str)]
    if names:
        raise ConfigError(
            f"{path} has a section {names[0]!r:.80}, expected names such as 'training:'"
        )
    return data


def line_of(path: Path, names: Sequence[str]) -> int | None:
    """Return the line of a file that sets a value, given the path of its names, or None."""
    try:
        node: Any = yaml.compose(read_bytes(path, MAX_BYTES).decode("utf-8-sig"), Loader=_Loader)
    except (OSError, ValueError, yaml.YAMLError):
        return None
    line: int | None = None
    for name in names:
        if not isinstance(node, yaml.MappingNode):
            break
        found = [(key, value) for key, value in node.value if key.value == name]
        if not found:
            break
        line, node = found[-1][0].start_mark.line + 1, found[-1][1]
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
        data = yaml.load(text, Loader=_Loader)
    except RecursionError:
        raise _refused("values are nested too deeply", None) from None
    except (ValueError, ArithmeticError, LookupError, AttributeError, TypeError) as error:
        # Values that only look like dates or numbers: 2001-99-99, !!bool perhaps.
        raise _refused(f"a value cannot be read: {error}", None) from error
    if is_deeper(data, MAX_DEPTH):  # by aliases of aliases
        raise _refused(f"values are nested more than {MAX_DEPTH} deep", None)
    return data


def dump(data: dict[str, Any]) -> str:
    """Return a mapping as YAML, in its own order, one line per plain value."""
    return yaml.dump(data, Dumper=_Dumper, allow_unicode=True, sort_keys=False, width=1_000_000)
