"""Imports a user's file or module by name, once, without starting a training run."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from turnwise.errors import ConfigError, did_you_mean
from turnwise.user_code.trust import require_code

GUARD = 'if __name__ == "__main__":'

_STAMP = "__turnwise_stamp__"
"""The attribute of a user's module with its file's modification time and size."""
_importing: list[str] = []
"""Files that are being imported now, the innermost last."""
_refused: dict[str, ConfigError] = {}
"""What a file did that it must not: it may catch the error, its import fails anyway."""

_LOST = {
    "<notebook>": "was defined in a notebook",
    "<interactive>": "was typed at a Python prompt",
    "<function>": "was defined inside a function or without a name",
    "<object>": "is an object that a script made",
}


def import_object(target: str, *, option: str = "its name", is_built_in: bool = False) -> Any:
    """Return the object that `path.py:Name` or `package.module:Name` means.

    `option` is the setting that names another object, for the error about a recorded target that
    cannot be imported: `<notebook>:Name`. A folder that the user does not trust cannot name code
    (see `trust`); `is_built_in` is for turnwise's own tables.
    """
    source, _, attribute = target.rpartition(":")
    if source in _LOST:
        raise ConfigError(
            f"{attribute} {_LOST[source]}, so it cannot be imported from here. Put it into a file, "
            f"under a name of its own, and give {option}: file.py:name"
        )
    if not source or not attribute:
        raise ConfigError(f"got {target!r}, expected path/to/file.py:Name or package.module:Name")
    if not is_built_in:
        require_code(target)
    is_file = source.endswith(".py")
    module = import_file(Path(source)) if is_file else _import_module(source, target)
    value: Any = module
    for name in attribute.split("."):
        if not hasattr(value, name):
            defined = {
                known
                for known, item in vars(module).items()
                if getattr(item, "__module__", None) == module.__name__
            }
            names = defined | set(getattr(module, "__all__", ()))
            raise ConfigError(f"{source} has no {attribute!r}. {did_you_mean(name, names)}")
        value = getattr(value, name)
    return value


def import_file(path: Path) -> ModuleType:
    """Import a Python file under a unique module name; a second call returns the same module.

    The module is imported again only if the file has changed. The script that is running is not
    imported a second time: its classes exist already.
    """
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")
    resolved = path.resolve()
    main = sys.modules.get("__main__")
    running = getattr(main, "__file__", None)
    if main is not None and running is not None and Path(running).resolve() == resolved:
        return main
    # The name is stable and registered, so that objects of the file can be copied and pickled.
    digest = hashlib.sha256(str(resolved).encode()).hexdigest()[:8]
    name = f"turnwise_user_{path.stem}_{digest}"
    stamp = (resolved.stat().st_mtime_ns, resolved.stat().st_size)
    known = sys.modules.get(name)
    if known is not None and getattr(known, _STAMP, None) == stamp:
        return known
    spec = importlib.util.spec_from_file_location(name, resolved)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _guarded(resolved):
            spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    vars(module)[_STAMP] = stamp
    return module


def imported_files() -> list[ModuleType]:
    """Return the modules of users' files in this process: no other one can import their names."""
    # Not by `hasattr`: it makes some packages import other modules.
    modules = list(sys.modules.values())
    return [module for module in modules if _STAMP in getattr(module, "__dict__", ())]


def module_file(module: str, folder: Path) -> Path | None:
    """Return the file of `package.module` below a folder; it is looked for, not imported."""
    *packages, name = module.split(".")
    parent = folder.joinpath(*packages)
    for path in (parent / name / "__init__.py", parent / f"{name}.py"):
        if path.is_file():
            return path.resolve()
    return None


def refuse_during_import(action: str) -> None:
    """Raise if a user's file is being imported: its top level must not start `action`."""
    if not _importing:
        return
    file = _importing[-1]
    frame = sys._getframe(1)
    while frame.f_back is not None and not _is_top_level(frame, file):
        frame = frame.f_back
    _refused[file] = ConfigError(
        f"{file}:{frame.f_lineno} {action} as soon as the file is imported, and turnwise imports "
        f"it to find what is defined there. Put that part of the file under the line\n{GUARD}"
    )
    raise _refused[file]


def _is_top_level(frame: FrameType, file: str) -> bool:
    is_module = frame.f_code.co_name == "<module>"
    return is_module and str(Path(frame.f_code.co_filename).resolve()) == file


@contextlib.contextmanager
def _guarded(path: Path) -> Iterator[None]:
    """Guard the top level of a file: it must neither train nor exit."""
    _importing.append(str(path))
    try:
        yield
    except SystemExit as error:
        if str(path) not in _refused:
            raise ConfigError(
                f"{path} ended with {error!r} when it was imported. Put what the file does as a "
                f"script under the line\n{GUARD}"
            ) from error
    finally:
        _importing.pop()
        refusal = _refused.pop(str(path), None)
    if refusal is not None:
        raise refusal


def _import_module(name: str, target: str) -> ModuleType:
    known = sys.modules.get(name)
    if known is not None:
        return known
    files = (module_file(name, Path(entry)) for entry in sys.path)
    file = next((file for file in files if file is not None), Path(name))
    try:
        with _guarded(file):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # An import that fails inside the module is not a wrong name of the module.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(
            f"there is no module {name!r} for {target!r}. "
            "A file is written with its ending: path/to/file.py:Name"
        ) from None
