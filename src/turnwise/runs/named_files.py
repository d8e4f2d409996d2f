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
    "inference.backend": "code",
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
    "model.reference": "model",
    "logging.sinks": "code",
    "training.adv_estimator": "code",
    "training.policy_loss": "code",
    "training.optimizer": "code",
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
    names: list[Named] = []

    def note(name: Named) -> str:
        names.append(name)
        return name.text

    for setting, value in config.settings():
        if setting in NAMES:
            rewritten(setting, value, note)
    return iter(names)


def rewritten(setting: str, value: Any, rewrite: Rewrite) -> Any:
    """Return the value of one setting with its names replaced; its shape stays the same."""
    kind = NAMES[setting]
    if setting == "agent" and not names_code(str(value)):  # a command
        return value
    return _rewritten(setting, kind, value, rewrite)


def _rewritten(setting: str, kind: Kind, value: Any, rewrite: Rewrite) -> Any:
    if isinstance(value, str):
        # One file of a dataset is the first of a list, written without the list.
        is_one = kind == "rows" and setting.endswith(".path")
        return rewrite(Named(f"{setting}.0" if is_one else setting, kind, value))
    if isinstance(value, list):
        return [
            _rewritten(f"{setting}.{index}", kind, item, rewrite)
            for index, item in enumerate(value)
        ]
    fields: dict[str, Kind] = {}
    if isinstance(value, RewardItem):
        fields = {"function": "code"}
    elif isinstance(value, DatasetConfig):
        fields = {"path": "rows"}
    elif isinstance(value, EnvironmentItem):  # an environment of a mix
        fields = {"environment": "code", "reward": "code", "tools": "code"}
        fields |= {"dataset": "rows", "eval_dataset": "rows"}
    elif isinstance(value, dict):
        return _rewritten_tool(setting, value, rewrite)
    if not fields:
        return value
    changed = {
        field: _rewritten(f"{setting}.{field}", field_kind, getattr(value, field), rewrite)
        for field, field_kind in fields.items()
    }
    return dataclasses.replace(value, **changed)


def _rewritten_tool(setting: str, tool: dict[str, Any], rewrite: Rewrite) -> dict[str, Any]:
    """Return an entry of `tools` with options: code, a server, or Python with packages."""
    changed = dict(tool)
    if "mcp" in tool:  # the working directory of a server; empty: that of the run
        changed["cwd"] = rewrite(Named(f"{setting}.cwd", "folder", str(tool.get("cwd") or "")))
        return {name: value for name, value in changed.items() if name != "cwd" or value}
    if isinstance(tool.get("tool"), str):
        changed["tool"] = rewrite(Named(setting, "code", tool["tool"]))
    if isinstance(tool.get("packages"), list):
        packages = f"{setting}.packages"
        changed["packages"] = _rewritten(packages, "folder", tool["packages"], rewrite)
    return changed
