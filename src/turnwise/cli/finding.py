"""Finding what the settings name: in the places of a run, or where the user is."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from turnwise.cli.settings import name_code
from turnwise.errors import ConfigError
from turnwise.runs.named_files import Named
from turnwise.runs.places import find_folder, module_facts, module_of, recorded_module
from turnwise.user_code import import_from, module_file

_OPTIONS = {
    "environment": "--env",
    "reward": "--reward",
    "tools": "--tool",
    "parser": "--parser",
    "dataset": "--dataset",
    "eval_dataset": "--dataset",
}
"""What supplies another one in commands that take a run."""


@dataclass(frozen=True)
class Finder:
    """Finds the code and files that settings name, and says what is missing."""

    folders: tuple[Path, ...]
    """Where the settings come from; the present folder is searched after these."""
    run: Path | None = None
    """The run whose settings they are."""
    typed: tuple[str, ...] = ()
    """Settings that the user typed in this command: searched for in the present folder first."""

    def find(self, name: Named) -> str:
        """Return a name that means the same thing in the present folder."""
        if name.text.startswith("<"):  # it cannot be found by name: whoever needs it says so
            return name.text
        if name.kind == "folder":
            return self._folder(name)
        if name.kind == "code":
            return self._code(name)
        folder = find_folder(name, self._places(name))
        if folder is None and name.kind == "rows":
            raise self._missing(name, name.text)
        return _from_here(name.text, folder)

    def _places(self, name: Named) -> list[Path]:
        is_typed = any(name.is_of(setting) for setting in self.typed)
        return [Path(), *self.folders] if is_typed else [*self.folders, Path()]

    def _code(self, name: Named) -> str:
        module = module_of(name)
        folder = find_folder(name, self._places(name))
        place, _, attribute = name.text.rpartition(":")
        if place.endswith(".py"):
            if folder is None:
                raise self._missing(name, place)
            target = f"{_from_here(place, folder)}:{attribute}"
            name_code(target, None if folder == Path() else folder)
            return target
        installed = None
        if module is not None and self.run is not None and folder is not None:
            installed = _importable_elsewhere(module, self._places(name))
            if installed is not None:
                folder = self._used_before(name, module, [folder, installed])
            _check_not_imported(module, folder)
        name_code(name.text, None if folder == Path() else folder)
        if module is not None and folder is not None and installed is not None:
            import_from(folder, module)  # now, before another path leads to the other one
        return name.text

    def _used_before(self, name: Named, module: str, folders: list[Path]) -> Path:
        """The one of two folders with a module of this name whose module the run has used."""
        assert self.run is not None
        recorded = recorded_module(self.run, module)
        files = {folder: module_file(module, folder) for folder in folders}
        for folder, file in files.items():
            if file is not None and module_facts(file) == recorded:
                return folder
        own, other = files.values()
        raise ConfigError(
            f"{name.text} is named by {self.run}, and there are two modules {module}: {own} and "
            f"{other}. The run used neither as it is now, so it is unclear which one is meant. "
            f"{self._supply(name, 'FILE.PY:NAME')}"
        )

    def _folder(self, name: Named) -> str:
        """Where a server is started: where the run was, whatever that folder is called now."""
        if not self.folders:
            return name.text
        here = next((folder for folder in self.folders if folder.is_dir()), Path())
        return str(here / name.text)

    def _missing(self, name: Named, text: str) -> ConfigError:
        looked = dict.fromkeys(str(folder.resolve()) for folder in self._places(name)[:3])
        looked |= {str(Path.cwd()): None}
        problem = f"there is no file {text}, which the setting {name.setting} names"
        if self.run is not None:
            problem = f"{self.run} names the file {text} ({name.setting}), which is not there"
        kind = "FILE.PY:NAME" if name.kind == "code" else "FILE"
        supply = "" if self.run is None else f". {self._supply(name, kind)}"
        return ConfigError(f"{problem}: looked in {', '.join(looked)}{supply}")

    def _supply(self, name: Named, value: str) -> str:
        """How the user gives another one."""
        words = [word for word in name.setting.split(".") if not word.isdigit()]
        option = next(_OPTIONS[word] for word in reversed(words) if word in _OPTIONS)
        return (
            f"Put the project back where the run finds it, or supply it: {option} {value} "
            f"(with turnwise train: {name.setting.removesuffix('.0')}={value})"
        )


def _from_here(text: str, folder: Path | None) -> str:
    """A path in a folder as it is written from the present one; None: not found, as it is."""
    path, here = Path(text).expanduser(), Path.cwd()
    if path.is_absolute():
        return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
    if folder is None or folder.resolve() == here.resolve():
        return text
    return str(folder / path)


def _importable_elsewhere(module: str, places: list[Path]) -> Path | None:
    """The folder of an installed module of this name; those in the places are not installed."""
    own = {place.resolve() for place in places}
    folders = [Path(entry) for entry in sys.path if entry and Path(entry).resolve() not in own]
    return next((folder for folder in folders if module_file(module, folder)), None)


def _check_not_imported(module: str, folder: Path | None) -> None:
    """Refuse a package of which another one of the same name is in use: there can be only one."""
    top = module.partition(".")[0]
    loaded = sys.modules.get(top)
    paths = [*getattr(loaded, "__path__", []), getattr(loaded, "__file__", None)]
    found = next((Path(path).resolve() for path in paths if path), None)
    if folder is not None and found is not None and not found.is_relative_to(folder.resolve()):
        raise ConfigError(
            f"the run's module {module} is in {folder}, and another module {top} was imported from "
            f"{found} before. A process can use one of them: rename one, or leave the other out."
        )
