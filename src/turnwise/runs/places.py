"""The settings that name code, files and folders, and where these are.

Settings name files relative to the folder in which the run began, its base directory. `run.json`
holds that folder twice: relative to the run folder, so that a project can be moved or copied with
its runs, and as it was.
"""

import copy
import dataclasses
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from turnwise.config import ConfigStore, DatasetConfig, EnvironmentItem, PolicyItem, RewardItem
from turnwise.env.catalog import ADAPTERS
from turnwise.runs.run_folder import RunFolder
from turnwise.user_code import module_file, names_code

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
    "policies": "model",
    "logging.sinks": "code",
    "training.adv_estimator": "code",
    "training.policy_loss": "code",
    "training.optimizer": "code",
    "training.warm_start": "conversations",
}
"""The settings that name code or files. New ones must be added here."""


_PLAYERS = ("expert", "random")
"""What `training.warm_start` may name instead of a file."""


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


def names_in(config: ConfigStore) -> list[Named]:
    """Return every name of code or files in the settings."""
    names: list[Named] = []

    def note(name: Named) -> str:
        names.append(name)
        return name.text

    for setting, value in config.settings():
        if setting in NAMES:
            rewritten(setting, value, note)
    return names


def rewritten(setting: str, value: Any, rewrite: Rewrite, kind: Kind | None = None) -> Any:
    """Return the value of a setting with its names replaced; its shape stays the same."""
    if setting == "agent" and not names_code(str(value)):  # a command
        return value
    kind = kind or NAMES[setting]
    if isinstance(value, str):
        # One file of a dataset is the first of a list, written without the list.
        is_one = kind == "rows" and setting.endswith(".path")
        return rewrite(Named(f"{setting}.0" if is_one else setting, kind, value))
    if isinstance(value, list):
        items = enumerate(value)
        return [rewritten(f"{setting}.{index}", item, rewrite, kind) for index, item in items]
    if setting == "policies":
        items = value.items()
        return {name: rewritten(f"{setting}.{name}", item, rewrite, kind) for name, item in items}
    if isinstance(value, dict):  # a tool with options: code, a server, or Python with packages
        changed = dict(value)
        if "mcp" in value:  # the working directory of a server; empty: that of the run
            folder = rewrite(Named(f"{setting}.cwd", "folder", str(value.get("cwd") or "")))
            changed.pop("cwd", None)
            return {**changed, "cwd": folder} if folder else changed
        if isinstance(value.get("tool"), str):
            changed["tool"] = rewrite(Named(setting, "code", value["tool"]))
        if isinstance(value.get("packages"), list):
            packages = f"{setting}.packages"
            changed["packages"] = rewritten(packages, value["packages"], rewrite, "folder")
        return changed
    fields: dict[str, Kind] = {}
    if isinstance(value, RewardItem):
        fields = {"function": "code"}
    elif isinstance(value, PolicyItem):
        fields = {"model": "model"}
    elif isinstance(value, DatasetConfig):
        fields = {"path": "rows"}
    elif isinstance(value, EnvironmentItem):  # an environment of a mix
        fields = {"environment": "code", "reward": "code", "tools": "code"}
        fields |= {"dataset": "rows", "eval_dataset": "rows"}
    if not fields:
        return value
    return dataclasses.replace(
        value,
        **{
            field: rewritten(f"{setting}.{field}", getattr(value, field), rewrite, field_kind)
            for field, field_kind in fields.items()
        },
    )


# ---- where they are ----


def places_of(run: Path) -> list[Path]:
    """Return the folders in which the code and files of a run may be, the likeliest first.

    The base directory comes first: where it is relative to the run folder, then where it was. The
    folders around the run follow. `run` may be a checkpoint.
    """
    run = run.absolute()
    if (run / "state.json").is_file() and (run.parent.parent / "run.json").is_file():
        run = run.parent.parent
    around = [*run.parents, *run.resolve().parents]
    return list(dict.fromkeys([*_base_directories(run), *around]))


def _base_directories(run: Path) -> list[Path]:
    """Return where the base directory of a run may be: as it lies from the run, and as it was."""
    recorded = RunFolder(run).status.get("base_directory")
    recorded = recorded if isinstance(recorded, dict) else {}
    from_run, path = recorded.get("from_run"), recorded.get("path")
    folders: list[Path] = []
    if isinstance(from_run, str):
        # Once through the links on the way to the run, once as the path is written.
        folders += [(run / from_run).resolve(), Path(os.path.normpath(run.absolute() / from_run))]
    if isinstance(path, str):
        folders.append(Path(path))
    return list(dict.fromkeys(folders))


def describe_base(base: Path, run: Path) -> dict[str, str]:
    """Return what `run.json` holds about the base directory of a run."""
    return {"path": str(base), "from_run": os.path.relpath(base.resolve(), run.resolve())}


def find_folder(name: Named, folders: Iterable[Path]) -> Path | None:
    """Return the first of the folders that holds what a name means; None if none does."""
    return next((folder for folder in folders if _file_in(name, folder) is not None), None)


def find_models(config: ConfigStore, folders: Sequence[Path]) -> None:
    """Name the folder of a model by its whole path, where one of these folders holds it."""

    def whole_path(name: Named) -> str:
        folder = find_folder(name, folders) if name.kind == "model" else None
        return name.text if folder is None else str(folder / Path(name.text).expanduser())

    rewrite_names(config, whole_path)


def with_recorded_names(
    config: ConfigStore, before: ConfigStore, run: Path
) -> tuple[ConfigStore, Path]:
    """Return the settings of a resumed run under the names of its base directory, and that folder.

    If none of the files that are used now is in it, the project is elsewhere: then the names stay
    as they are, and the present folder is their base.
    """
    here = Path.cwd()
    files: dict[str, Path] = {}
    for name in names_in(config):  # the file of a module is that which is imported
        imported = getattr(sys.modules.get(_module(name) or ""), "__file__", None)
        path = _file_in(name, here) if imported is None else Path(imported).resolve()
        if path is not None:
            files[name.setting] = path
    base = here
    for folder in reversed(_base_directories(run)):
        is_used = any(path.is_relative_to(folder.resolve()) for path in files.values())
        if folder.is_dir() and (is_used or not files):
            base = folder

    def from_base(name: Named) -> str:
        path = files.get(name.setting)
        if path is None or base == here or _module(name) is not None:
            return name.text
        if name.kind == "folder" and path == base.resolve():
            return ""
        inside = path.is_relative_to(base.resolve())
        text = str(path.relative_to(base.resolve()) if inside else path)
        return f"{text}:{name.text.rpartition(':')[2]}" if name.kind == "code" else text

    renamed = copy.deepcopy(config)
    rewrite_names(renamed, from_base)
    output = base / Path(before.checkpoint.output_dir).expanduser()
    if output.resolve() == run.resolve().parent:
        renamed.checkpoint.output_dir = before.checkpoint.output_dir
    if before.checkpoint.run_name in (None, run.resolve().name):
        renamed.checkpoint.run_name = before.checkpoint.run_name
    return renamed, base


def _file_in(name: Named, folder: Path) -> Path | None:
    """Return the file or folder that a name means relative to a folder; None: not found."""
    text = name.text
    if text.startswith("<") or (name.kind == "conversations" and text in _PLAYERS):
        return None
    if (module := _module(name)) is not None:
        return module_file(module, folder)
    if name.kind == "code":
        text = text.rpartition(":")[0]
        path = folder / Path(text).expanduser()
        return path.resolve() if text.endswith(".py") and path.is_file() else None
    path = folder / Path(text).expanduser()
    if name.kind != "model":
        return path.resolve() if path.exists() else None
    if not (path / "config.json").is_file():
        return None
    from turnwise.models import load  # late: it imports torch

    return None if text in load.BUILT_IN else path.resolve()


def _module(name: Named) -> str | None:
    """Return `package.module` of `package.module:Name`; None for a file or a built-in name."""
    if name.kind != "code" or name.text.startswith("<"):
        return None
    module, colon, _ = name.text.rpartition(":")
    if not colon or module.endswith(".py") or name.text.partition(":")[0] in ADAPTERS:
        return None
    return module
