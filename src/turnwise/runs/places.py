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

from turnwise.config import ConfigStore
from turnwise.env.catalog import ADAPTERS
from turnwise.runs.named_files import Named, names_of, rewrite_names
from turnwise.runs.run_folder import RunFolder
from turnwise.user_code import module_file

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
    files = {name.setting: path for name in names_of(config) if (path := _file_now(name, here))}
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


def _file_now(name: Named, here: Path) -> Path | None:
    """Return the file that a name means in this process; of a module, the imported one."""
    module = _module(name)
    file = getattr(sys.modules.get(module), "__file__", None) if module is not None else None
    return _file_in(name, here) if file is None else Path(file).resolve()


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
