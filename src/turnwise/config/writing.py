"""Settings as YAML, each under its line of help."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from turnwise.config.dataset import DatasetConfig
from turnwise.config.environment import EnvironmentItem
from turnwise.yaml_files import dump

_USUAL = EnvironmentItem("")


def yaml_lines(item: dataclasses.Field[Any], value: Any) -> list[str]:
    """One setting under its line of help."""
    if isinstance(value, list):
        value = [_plain(entry) for entry in value]
    is_plain = isinstance(value, str | bool | int | None)
    text = _line(item.name, value) if is_plain else dump({item.name: value})
    return [f"# {item.metadata['help']}", *text.rstrip("\n").split("\n")]


# A run writes its settings with every checkpoint, and nearly all are as they were.
@functools.lru_cache(maxsize=1024, typed=True)
def _line(name: str, value: str | bool | int | None) -> str:
    return dump({name: value})


def _plain(entry: Any) -> Any:
    """An entry of a list for YAML; of an environment, what is not as usual."""
    if isinstance(entry, EnvironmentItem | DatasetConfig):
        kept = {f.name: getattr(entry, f.name) for f in dataclasses.fields(entry)}
        usual = dataclasses.asdict(DatasetConfig() if isinstance(entry, DatasetConfig) else _USUAL)
        plain = {name: _plain(value) for name, value in kept.items()}
        return {
            name: value
            for name, value in plain.items()
            if value != usual[name] and not (name.endswith("dataset") and not value)
        }
    if isinstance(entry, list):
        return [_plain(inner) for inner in entry]
    return dataclasses.asdict(entry) if dataclasses.is_dataclass(entry) else entry  # type: ignore[arg-type]
