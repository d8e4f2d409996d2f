"""Where the code and files are that the settings of a run name, and under which names.

Settings name files relative to the folder in which the run began, its base directory. `run.json`
holds that folder twice: relative to the run folder, so that a project can be moved or copied with
its runs, and as it was.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from turnwise.config import ConfigStore
from turnwise.env.catalog import ADAPTERS
from turnwise.runs.named_files import Named, names_of, rewrite_names
from turnwise.runs.run_folder import RunFolder
from turnwise.user_code import is_installed, module_file, module_hash

_PLAYERS = ("expert", "random")
"""What `training.warm_start` may name instead of a file."""


def places_of(run: Path) -> list[Path]:
    """Return the folders in which the code and files of a run may be, the likeliest first.

    The base directory comes first: where it is relative to the run folder, then where it was. The
    folders around the run follow. `run` may be a checkpoint.
    """
    run = run.absolute()
    if (run / "state.json").is_file() and (run.parent.parent / "run.json").is_file():
        run = run.parent.parent
    around = [*run.parents, *run.resolve().parents]
    return list(dict.fromkeys([*base_directories(run), *around]))


def base_directories(run: Path) -> list[Path]:
    """Return where the base directory of a run may be: as it lies from the run, and as it was."""
    recorded = RunFolder(run).status.get("base_directory")
    recorded = recorded if isinstance(recorded, dict) else {}
    from_run, path = recorded.get("from_run"), recorded.get("path")
    # Once through the links on the way to the run, once as the path is written.
    found: list[Path] = []
    if isinstance(from_run, str):
        found += [(run / from_run).resolve(), Path(os.path.normpath(run.absolute() / from_run))]
    if isinstance(path, str):
        found.append(Path(path))
    return list(dict.fromkeys(found))


def recorded_module(run: Path, module: str) -> dict[str, Any]:
    """Return what the run recorded about a module: `defined_in` and a `hash` of its file."""
    found = RunFolder(run).status.get("modules")
    entry = found.get(module) if isinstance(found, dict) else None
    return entry if isinstance(entry, dict) else {}


def module_facts(file: Path) -> dict[str, str]:
    """Return what `run.json` holds about a module: whether it is installed, a hash of its file."""
    origin = "installed" if is_installed(file) else "file"
    return {"defined_in": origin, "hash": module_hash(file)}


def named_modules(config: ConfigStore) -> dict[str, dict[str, str]]:
    """Return facts about each module that the settings name; turnwise's own are not among them."""
    names = (module_of(name) for name in names_of(config))
    files = {name: _imported_file(name) for name in sorted({name for name in names if name})}
    return {
        name: module_facts(file)
        for name, file in files.items()
        if file is not None and name.partition(".")[0] != "turnwise"
    }


def describe_base(base: Path, run: Path) -> dict[str, str]:
    """Return what `run.json` holds about the base directory of a run."""
    return {"path": str(base), "from_run": os.path.relpath(base.resolve(), run.resolve())}


def find_folder(name: Named, folders: Iterable[Path]) -> Path | None:
    """Return the first of the folders that holds what a name means; None if none does."""
    return next((folder for folder in folders if _file_in(name, folder) is not None), None)


def find_models(config: ConfigStore, folders: Sequence[Path]) -> None:
    """Name the folder of a model by its whole path, where one of these folders holds it."""

    def found(name: Named) -> str:
        folder = find_folder(name, folders) if name.kind == "model" else None
        return name.text if folder is None else str(folder / Path(name.text).expanduser())

    rewrite_names(config, found)


def with_recorded_names(
    config: ConfigStore, before: ConfigStore, run: Path
) -> tuple[ConfigStore, Path]:
    """Return settings under the names that the run recorded, and the base directory of the names.

    A name stays as it was recorded if it still means the same file. Others are named relative to
    the same base directory. Where none of the recorded names leads to a file that is used now, the
    project is elsewhere: then the names are those of now, and the present folder is their base.
    """
    here = Path.cwd()
    places = places_of(run)
    recorded = {name.setting: name for name in names_of(before)}
    used = {name.setting: path for name in names_of(config) if (path := _file_now(name, here))}
    base = _base(recorded, used, run, here)
    same = {
        setting: name.text
        for setting, name in recorded.items()
        if setting in used and _first(name, [base, *places]) == used[setting]
    }

    def named(name: Named) -> str:
        if name.setting in same:
            return same[name.setting]
        return _from_base(name, used.get(name.setting), base, here)

    found = copy.deepcopy(config)
    rewrite_names(found, named)
    _keep_own_place(found, before, run, base)
    return found, base


def _base(recorded: dict[str, Named], used: dict[str, Path], run: Path, here: Path) -> Path:
    """Return the base directory of the names: the recorded one, unless the files were moved."""
    known = base_directories(run)
    relative = {
        setting: name
        for setting, name in recorded.items()
        if setting in used and not Path(name.text).expanduser().is_absolute()
    }
    for folder in known:
        if any(_file_in(name, folder) == used[setting] for setting, name in relative.items()):
            return folder
    # Without relative names, the recorded one is kept.
    is_there = next((folder for folder in known if folder.is_dir()), here)
    return here if relative else is_there


def _from_base(name: Named, path: Path | None, base: Path, here: Path) -> str:
    """Return the name relative to `base` of what a name means in the current folder."""
    is_fixed = path is None or base == here or name.text.startswith("<")
    if path is None or is_fixed or module_of(name) is not None:
        return name.text
    root = base.resolve()
    if name.kind == "folder" and path == root:
        return ""
    place = path.relative_to(root) if path.is_relative_to(root) else path
    attribute = name.text.rpartition(":")[2] if name.kind == "code" else ""
    return f"{place}:{attribute}" if attribute else str(place)


def _keep_own_place(config: ConfigStore, before: ConfigStore, run: Path, base: Path) -> None:
    """Keep `output_dir` and `run_name` as they were recorded, if they are still right."""
    folder = base / Path(before.checkpoint.output_dir).expanduser()
    if folder.resolve() == run.resolve().parent:
        config.checkpoint.output_dir = before.checkpoint.output_dir
    if before.checkpoint.run_name in (None, run.resolve().name):
        config.checkpoint.run_name = before.checkpoint.run_name


def _first(name: Named, folders: Iterable[Path]) -> Path | None:
    return next((path for folder in folders if (path := _file_in(name, folder))), None)


def _file_now(name: Named, here: Path) -> Path | None:
    """Return the file that a name means in this process; of a module, the imported one."""
    module = module_of(name)
    return (None if module is None else _imported_file(module)) or _file_in(name, here)


def _imported_file(module: str) -> Path | None:
    file = getattr(sys.modules.get(module), "__file__", None)
    return None if file is None else Path(file).resolve()


def _file_in(name: Named, folder: Path) -> Path | None:
    """Return the file or folder that a name means relative to a folder; None: not found."""
    text = name.text
    if text.startswith("<"):
        return None
    if name.kind == "code":
        module = module_of(name)
        if module is not None:
            return module_file(module, folder)
        text = text.rpartition(":")[0]
        is_file = text.endswith(".py")
        path = folder / Path(text).expanduser()
        return path.resolve() if is_file and path.is_file() else None
    if name.kind == "conversations" and text in _PLAYERS:
        return None
    path = folder / Path(text).expanduser()
    is_there = (path / "config.json").is_file() if name.kind == "model" else path.exists()
    if is_there and name.kind == "model":
        from turnwise.models import load  # late: it imports torch

        is_there = text not in load.BUILT_IN
    return path.resolve() if is_there else None


def module_of(name: Named) -> str | None:
    """Return `package.module` of `package.module:Name`; None for a file or a built-in name."""
    if name.kind != "code" or name.text.startswith("<"):
        return None
    place, colon, _ = name.text.rpartition(":")
    if not colon or place.endswith(".py") or name.text.partition(":")[0] in ADAPTERS:
        return None
    return place
