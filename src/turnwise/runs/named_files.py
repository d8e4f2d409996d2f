"""The settings that name code, files and folders, and how these names are rewritten.

A run's settings name files relative to the folder in which the run began. Everything that finds
these files, compares two settings or records other names uses `rewrite_names`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, TypeAlias

from turnwise.config import ConfigStore, DatasetConfig, EnvironmentItem, RewardItem
from turnwise.user_code import names_code

Kind: TypeAlias = Literal["code", "rows", "conversations", "model", "folder"]
"""`code` is `file.py:Name`, `module:Name` or a built-in name; `rows` a file or folder of a dataset;
`conversations` a file of a warm start; `model` and `folder` are folders."""

NAMES: dict[str, Kind] = {
    "environment.name": "code",
    "environments": "code",
    "agent": "code",
    "expert": "code",
    "reward": "code",
    "tools": "code",
    "parser": "code",
    "dataset.path": "rows",
    "eval_dataset.path": "rows",
    "model.model_name": "model",
    "model.local_path": "model",
    "training.adv_estimator": "code",
    "training.policy_loss": "code",
    "training.warm_start": "conversations",
}
"""The settings that name code or files. New ones must be added here."""


class Named(NamedTuple):
    """A name in the settings."""

    setting: str
    """Its place: `environment.name`, `dataset.path.0`, `environments.1.tools.0` ..."""
    kind: Kind
    text: str

    def is_of(self, setting: str) -> bool:
        """Return whether a setting, such as `dataset` or `dataset.path`, contains this name."""
        return self.setting == setting or self.setting.startswith(f"{setting}.")


Rewrite: TypeAlias = Callable[[Named], str]


def rewrite_names(config: ConfigStore, rewrite: Rewrite) -> None:
    """Replace every name of code or files in the settings by what `rewrite` returns for it."""
    for setting in NAMES:
        section, _, field = setting.rpartition(".")
        owner: Any = getattr(config, section) if section else config
        setattr(owner, field, rewritten(setting, getattr(owner, field), rewrite))


def names_of(config: ConfigStore) -> Iterator[Named]:
    """Yield every name of code or files in the settings."""
    found: list[Named] = []

    def note(name: Named) -> str:
        found.append(name)
        return name.text

    for setting, value in config.settings():
        if setting in NAMES:
            rewritten(setting, value, note)
    return iter(found)


def rewritten(setting: str, value: Any, rewrite: Rewrite) -> Any:
    """Return the value of one setting with its names replaced; its shape stays the same."""
    kind = NAMES[setting]
    if setting == "agent" and not names_code(str(value)):  # a command
        return value
    if isinstance(value, str) and kind == "rows":  # the first of a list, written without the list
        return rewrite(Named(f"{setting}.0", kind, value))
    return _rewritten(setting, kind, value, rewrite)


def _rewritten(setting: str, kind: Kind, value: Any, rewrite: Rewrite) -> Any:
    if isinstance(value, str):
        return rewrite(Named(setting, kind, value))
    if isinstance(value, list):
        return [
            _rewritten(f"{setting}.{index}", kind, item, rewrite)
            for index, item in enumerate(value)
        ]
    if isinstance(value, dict):
        return _rewritten_tool(setting, value, rewrite)
    if isinstance(value, RewardItem):
        function = _rewritten(f"{setting}.function", kind, value.function, rewrite)
        return dataclasses.replace(value, function=function)
    if isinstance(value, EnvironmentItem):
        return _rewritten_item(setting, value, rewrite)
    return value


def _rewritten_item(setting: str, item: EnvironmentItem, rewrite: Rewrite) -> EnvironmentItem:
    """Return an environment of a mix with its own names replaced."""
    code = {
        field: _rewritten(f"{setting}.{field}", "code", getattr(item, field), rewrite)
        for field in ("environment", "reward", "tools")
    }
    return dataclasses.replace(
        item,
        **code,
        dataset=_rewritten_rows(f"{setting}.dataset.path", item.dataset, rewrite),
        eval_dataset=_rewritten_rows(f"{setting}.eval_dataset.path", item.eval_dataset, rewrite),
    )


def _rewritten_rows(setting: str, rows: DatasetConfig, rewrite: Rewrite) -> DatasetConfig:
    setting = f"{setting}.0" if isinstance(rows.path, str) else setting
    return dataclasses.replace(rows, path=_rewritten(setting, "rows", rows.path, rewrite))


def _rewritten_tool(setting: str, tool: dict[str, Any], rewrite: Rewrite) -> dict[str, Any]:
    """Return an entry of `tools` with options: code, a server, or Python with packages."""
    found = dict(tool)
    if "mcp" in tool:  # the working directory of a server; empty: that of the run
        found["cwd"] = rewrite(Named(f"{setting}.cwd", "folder", str(tool.get("cwd") or "")))
        return {name: value for name, value in found.items() if name != "cwd" or value}
    if isinstance(tool.get("tool"), str):
        found["tool"] = rewrite(Named(setting, "code", tool["tool"]))
    if isinstance(tool.get("packages"), list):
        place = f"{setting}.packages"
        found["packages"] = _rewritten(place, "folder", tool["packages"], rewrite)
    return found
