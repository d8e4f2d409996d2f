"""The settings that name code, files and folders, and where these are.

Settings name files relative to the folder in which the run began, its base directory. `run.json`
holds that folder twice: relative to the run folder, so that a project can be moved or copied with
its runs, and as it was.
"""

import copy
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from turnwise.config import ConfigStore, DatasetConfig, EnvironmentItem, PolicyItem, RewardItem
from turnwise.config.fields import Section
from turnwise.env.catalog import ADAPTERS, TASK_SOURCES
from turnwise.runs.run_folder import RunFolder, run_containing
from turnwise.user_code import module_file, names_code

Kind: TypeAlias = Literal["code", "rows", "conversations", "model", "folder"]
"""`code` is `file.py:Name`, `module:Name` or a built-in name; `rows` a file or folder of a dataset;
`conversations` a file of a warm start; `model` and `folder` are folders."""

_BY_KIND: dict[Kind, str] = {
    "code": "environment.name environments agent expert reward tools parser inference.backend "
    "training.adv_estimator training.policy_loss training.optimizer logging.sinks",
    "rows": "dataset.path eval_dataset.path",
    "model": "model.model_name model.local_path model.reference policies",
    "conversations": "training.warm_start",
}
NAMES = {name: kind for kind, names in _BY_KIND.items() for name in names.split()}
"""The settings that name code or files. New ones must be added here."""
_FIELDS: dict[type, dict[str, Kind]] = {
    RewardItem: {"function": "code"},
    PolicyItem: {"model": "model"},
    DatasetConfig: {"path": "rows"},
    EnvironmentItem: {
        "environment": "code",
        "reward": "code",
        "tools": "code",
        "dataset": "rows",
        "eval_dataset": "rows",
    },
}
_TOOL_FIELDS: dict[str, Kind] = {"tool": "code", "packages": "folder", "cwd": "folder"}


@dataclass(frozen=True)
class Named:
    """A name in the settings."""

    setting: str
    """Its place: `environment.name`, `dataset.path.0`, `environments.1.tools.0` ..."""
    kind: Kind
    text: str
    holder: Any
    key: Any

    def replace(self, text: str) -> None:
        """Put another name in its place."""
        self.holder[self.key] = text

    @property
    def module(self) -> str | None:
        """`package.module` of `package.module:Name`; None for a file or a built-in name."""
        module, colon, _ = self.text.rpartition(":")
        is_other = self.text.startswith("<") or self.text.partition(":")[0] in ADAPTERS
        is_module = self.kind == "code" and colon and not module.endswith(".py") and not is_other
        return module if is_module else None

    def file_in(self, folder: Path) -> Path | None:
        """Return the file or folder that the name means relative to a folder; None: not there."""
        is_player = self.kind == "conversations" and self.text in ("expert", "random")
        if self.text.startswith("<") or is_player:
            return None
        if self.module is not None:
            return module_file(self.module, folder)
        text = self.text.rpartition(":")[0] if self.kind == "code" else self.text
        path = folder / Path(text).expanduser()
        is_there = path.exists() and (self.kind != "code" or text.endswith(".py"))
        if self.kind == "model" and is_there:
            from turnwise.models import load  # late: it imports torch

            is_there = (path / "config.json").is_file() and text not in load.BUILT_IN
        return path.resolve() if is_there else None


def names_in(config: ConfigStore) -> list[Named]:
    """Return every name of code or files in the settings."""
    names: list[Named] = []
    for setting, kind in NAMES.items():
        section, _, field = setting.rpartition(".")
        holder = vars(getattr(config, section) if section else config)
        names += _names(setting, kind, holder, field)
    return names


def _names(setting: str, kind: Kind, holder: Any, key: Any) -> Iterator[Named]:
    value = holder[key]
    if isinstance(value, str):
        is_command = setting == "agent" and not names_code(value)
        is_elsewhere = kind == "rows" and value.partition(":")[0] in TASK_SOURCES
        if not is_command and not is_elsewhere:
            yield Named(setting, kind, value, holder, key)
        return
    inner: dict[Any, Kind] = _FIELDS.get(type(value), {})
    if isinstance(value, list):
        inner = dict.fromkeys(range(len(value)), kind)
    elif isinstance(value, dict) and setting == "policies":
        inner = dict.fromkeys(value, kind)
    elif isinstance(value, dict):  # a tool with options: code, a server, or Python with packages
        inner = {name: kind for name, kind in _TOOL_FIELDS.items() if name in value}
    fields = vars(value) if isinstance(value, Section) else value
    for name, its_kind in inner.items():
        yield from _names(f"{setting}.{name}", its_kind, fields, name)


def servers_in(config: ConfigStore) -> list[dict[str, Any]]:
    """Return the tools that are MCP servers which are started, not those with a URL."""
    lists = [config.tools, *(item.tools or [] for item in config.environments or ())]
    tools = [tool for tools in lists for tool in tools if isinstance(tool, dict)]
    return [
        one for one in tools if not str(one.get("mcp", "http:")).startswith(("http:", "https:"))
    ]


# ---- where they are ----


def base_folders(run: Path) -> list[Path]:
    """Return where the base directory of a run may be: as it lies from the run, and as it was.

    `run` may be a checkpoint.
    """
    run = run_containing(run)
    recorded = RunFolder(run).status.get("base_directory")
    if not isinstance(recorded, dict):
        return []
    return [(run / str(recorded["from_run"])).resolve(), Path(str(recorded["path"]))]


def describe_base(base: Path, run: Path) -> dict[str, str]:
    """Return what `run.json` holds about the base directory of a run."""
    return {"path": str(base), "from_run": os.path.relpath(base.resolve(), run.resolve())}


def find_folder(name: Named, folders: Iterable[Path]) -> Path | None:
    """Return the first of the folders that holds what a name means; None if none does."""
    return next((folder for folder in folders if name.file_in(folder) is not None), None)


def find_models(config: ConfigStore, folders: Sequence[Path]) -> None:
    """Name the folder of a model by its whole path, where one of these folders holds it."""
    for name in names_in(config):
        if name.kind == "model" and (folder := find_folder(name, folders)) is not None:
            name.replace(str(folder / Path(name.text).expanduser()))


def with_recorded_names(
    config: ConfigStore, before: ConfigStore, run: Path
) -> tuple[ConfigStore, Path]:
    """Return the settings of a resumed run under the names of its base directory, and that folder.

    If none of the files that are used now is in it, the project is elsewhere: then the names stay
    as they are, and the present folder is their base.
    """
    here = Path.cwd()
    config = copy.deepcopy(config)
    config.checkpoint.output_dir = before.checkpoint.output_dir
    config.checkpoint.run_name = before.checkpoint.run_name
    names = [name for name in names_in(config) if name.module is None]
    files = [(name, path) for name in names if (path := name.file_in(here)) is not None]
    base = here
    for folder in base_folders(run):
        is_used = any(path.is_relative_to(folder.resolve()) for _, path in files)
        if folder.is_dir() and (is_used or not files):
            base = folder
            break
    if base != here:
        for name, path in files:
            is_inside = path.is_relative_to(base.resolve())
            text = str(path.relative_to(base.resolve()) if is_inside else path)
            ending = f":{name.text.rpartition(':')[2]}" if name.kind == "code" else ""
            name.replace(f"{text}{ending}")
        for server in servers_in(config):
            if server.get("cwd") == ".":  # where it runs without the setting
                del server["cwd"]
    return config, base
