"""User code: from `file.py:Name` or `module:Name` to the object, and back; and what may be run.

Code that a user names in a command or in Python is run. A run folder names code too: environment,
reward, tools, the model's own code. The folder may come from another person, so while its settings
are in use (`settings_from`) code is run only if the user allowed it for this command, or has run
the same code from the same place before. That is remembered outside the folder, in
`$XDG_STATE_HOME/turnwise/trusted-code`.
"""

import contextlib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import json
import os
import re
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from turnwise.errors import ConfigError, did_you_mean
from turnwise.user_code.fingerprint import fingerprint as fingerprint, is_installed as is_installed
from turnwise.user_code.tracebacks import (
    definition_note as definition_note,
    user_traceback as user_traceback,
)

_GUARD = 'if __name__ == "__main__":'
_STAMP = "__turnwise_stamp__"
"""The attribute of a user's module with its file's modification time and size."""
_TARGET = re.compile(r"(.+\.py|[^\W\d][\w.]*):[^\W\d][\w.]*")
_untrusted: list[Path] = []
"""Folders whose settings are in use and not trusted. Process-wide, so that it holds in threads that
play episodes too."""
_remembered: set[str] = set()
"""The code that was run in this process."""
_importing: list[str] = []
"""Files and modules that are being imported now, the innermost last."""


def names_code(text: str) -> bool:
    """Return whether a text is written as `file.py:Name` or `module:Name`.

    >>> names_code("agents/shop.py:buy"), names_code("my-cli --task {task}")
    (True, False)
    """
    return _TARGET.fullmatch(text) is not None


# ---- from the name to the object ----


def import_object(target: str, *, option: str = "its name", is_built_in: bool = False) -> Any:
    """Return the object that `path.py:Name` or `package.module:Name` means.

    `option` is the setting that names another object, for the error about a recorded target that
    cannot be imported: `<notebook>:Name`. A folder that the user does not trust cannot name code
    (see `require_code`); `is_built_in` is for turnwise's own tables.
    """
    source, _, attribute = target.rpartition(":")
    if is_lost(target):
        raise ConfigError(
            f"{attribute} was defined in a notebook, at a prompt or inside a function, or made by "
            f"a script. To import it here, put it into a file and give {option}: file.py:name"
        )
    if not source or not attribute:
        raise ConfigError(f"got {target!r}, expected path/to/file.py:Name or package.module:Name")
    if not is_built_in:
        require_code(target)
    is_file = source.endswith(".py")
    value: Any = import_file(Path(source)) if is_file else _import_module(source, target)
    for name in attribute.split("."):
        if not hasattr(value, name):
            known = vars(value).items()
            names = [k for k, v in known if k[0] != "_" and not isinstance(v, ModuleType)]
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
    main = sys.modules["__main__"]
    running = getattr(main, "__file__", None)
    if running is not None and Path(running).resolve() == resolved:
        return main
    # The name is stable and registered, so that objects of the file can be copied and pickled.
    digest = hashlib.sha256(str(resolved).encode()).hexdigest()[:8]
    name = f"turnwise_user_{path.stem}_{digest}"
    stamp = (resolved.stat().st_mtime_ns, resolved.stat().st_size)
    known = sys.modules.get(name)
    if known is not None and getattr(known, _STAMP, None) == stamp:
        return known
    spec: Any = importlib.util.spec_from_file_location(name, resolved)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with _guarded(str(resolved)):
        spec.loader.exec_module(module)
    vars(module)[_STAMP] = stamp  # so a module whose import failed is imported again
    return module


def _import_module(name: str, target: str) -> ModuleType:
    try:
        with _guarded(name):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # An import that fails inside the module is not a wrong name of the module.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(
            f"there is no module {name!r} for {target!r}. A file is written with its ending: "
            "path/to/file.py:Name"
        ) from None


@contextlib.contextmanager
def _guarded(name: str) -> Iterator[None]:
    """Guard the top level of a file: it must neither train nor exit."""
    _importing.append(name)
    try:
        yield
    except SystemExit as error:
        raise ConfigError(
            f"{name} ended with {error!r} when it was imported. Put what the file does as a "
            f"script under the line\n{_GUARD}"
        ) from error
    finally:
        _importing.pop()


def refuse_during_import(action: str) -> None:
    """Raise if a user's file is being imported: its top level must not start `action`."""
    if _importing:
        raise ConfigError(
            f"{_importing[-1]} {action} as soon as the file is imported, and turnwise imports it "
            f"to find what is defined there. Put that part of the file under the line\n{_GUARD}"
        )


def imported_files() -> list[ModuleType]:
    """Return the modules of users' files in this process: no other one can import their names."""
    # Not by `hasattr`: it makes some packages import other modules.
    return [one for one in [*sys.modules.values()] if _STAMP in getattr(one, "__dict__", ())]


def module_file(module: str, folder: Path) -> Path | None:
    """Return the file of `package.module` below a folder; it is looked for, not imported."""
    path = folder.joinpath(*module.split("."))
    files = (path / "__init__.py", path.with_name(f"{path.name}.py"))
    return next((file.resolve() for file in files if file.is_file()), None)


# ---- from the object to its name ----


def code_name(value: object) -> str:
    """Return `file.py:Name` or `module:Name` of a function or a class, or of an object's class.

    Code that cannot be imported again is named `<notebook>:Name`, `<interactive>:Name` (typed at a
    prompt) or `<function>:Name` (defined inside a function).

    >>> code_name(Path), code_name(lambda x: x)
    ('pathlib:Path', '<function>:<lambda>')
    """
    definition = _definition(value)
    name = str(definition.__qualname__)
    module = sys.modules.get(getattr(definition, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    is_main = module is not None and module.__name__ == "__main__"
    if module is None or (is_main and not (file and file.endswith(".py"))):
        is_notebook = is_main and "ipykernel" in sys.modules
        return f"<{'notebook' if is_notebook else 'interactive'}>:{name}"
    named: Any = module
    for part in name.split("."):
        named = getattr(named, part, None)
    if (_definition(named) if callable(named) else named) is not definition:
        return f"<function>:{name}"
    # A module of a package may have relative imports, which need the whole package.
    if not is_main and (file is None or module.__package__ or is_installed(Path(file))):
        return f"{module.__name__}:{name}"
    path, here = Path(str(file)).resolve(), Path.cwd()
    return f"{path.relative_to(here) if path.is_relative_to(here) else path}:{name}"


def _definition(value: Any) -> Any:
    while isinstance(value, functools.partial):
        value = value.func
    value = inspect.unwrap(value) if callable(value) else value
    if inspect.ismethod(value):
        value = value.__func__
    return value if isinstance(value, type) or inspect.isroutine(value) else type(value)


def callable_label(function: Any) -> str:
    """Return the name of a function; a callable object, or a method of one, gets a label.

    The command of an agent is its own name.
    """
    if isinstance(function, str):
        return function
    is_object = not isinstance(function, type) and not hasattr(function, "__code__")
    return object_label(function) if is_object else code_name(function)


def object_label(value: object) -> str:
    """Return a label for an object that cannot be imported."""
    return f"<object>:{type(value).__qualname__}"


def instance_label(value: object) -> str:
    """Return the name of the class that makes an equal object without arguments, or a label."""
    name = code_name(value)
    with contextlib.suppress(Exception):  # the constructor takes arguments; no attributes
        if not is_lost(name) and vars(type(value)()) == vars(value):
            return name
    return object_label(value)


def is_lost(label: str) -> bool:
    """Whether a label names an object that a later command cannot import."""
    return label.startswith("<") and ">:" in label


# ---- what may be run ----


@contextlib.contextmanager
def settings_from(folder: str | os.PathLike[str] | None, *, is_trusted: bool) -> Iterator[None]:
    """Treat settings in this block as read from a run folder; None: as the user's own."""
    if folder is None or is_trusted:
        yield
        return
    _untrusted.append(Path(folder))
    try:
        yield
    finally:
        _untrusted.remove(Path(folder))


def require_code(target: str, folder: Path | None = None) -> None:
    """Refuse `file.py:Name` or `module:Name` if a folder named it that the user does not trust.

    `folder` is where a module will be looked for first; without it, it is looked for in `sys.path`.
    """
    _require(*_locate(target, folder), named=f"code that would be run: {target}")


def remember_code(target: str) -> None:
    """Record that the user ran this code: a run folder that names it may use it later."""
    if not _untrusted:
        _remember(*_locate(target))


def require_model_code(name_or_path: str | os.PathLike[str]) -> None:
    """Refuse, in the same way, the Python code that comes with a model."""
    named = f"the Python code that comes with the model {os.fspath(name_or_path)}"
    _require(*_locate_model(name_or_path), named=f"code that would be run: {named}")


def allows_model_code(name_or_path: str | os.PathLike[str]) -> bool:
    """Return whether `require_model_code` would allow it."""
    return _is_allowed(_locate_model(name_or_path)[0])


def require_use(what: str) -> None:
    """Refuse, in the same way, anything else that runs code: a command, a server, a cluster."""
    _require(f"use {what}", named=what)


def remember_use(what: str) -> None:
    """Record that the user used this, as `remember_code` does for code."""
    if not _untrusted:
        _remember(f"use {what}")


def remember_agent(label: str | None) -> None:
    """Record that the user ran an agent's command; functions are code."""
    if label is not None and not names_code(label) and not is_lost(label):
        remember_use(f"the agent's command {label!r}")


def server_use(url: str) -> str:
    """Return an inference server in the words of `require_use`."""
    return f"the inference server {url}"


def is_in_run(path: Path) -> bool:
    """Return whether a file is in the folder of a run or of a checkpoint."""
    marks = ("run.json", "state.json")
    return any((folder / mark).is_file() for folder in path.parents for mark in marks)


def _locate(target: str, folder: Path | None = None) -> tuple[str, Path | None]:
    """Return what identifies code from any working directory, and its file or folder."""
    source, _, name = target.rpartition(":")
    if source.endswith(".py"):
        path = Path(source).resolve()
        return f"file {path}:{name}", path
    # The location of the outermost package; to find an inner one would import it.
    first = [] if folder is None else [str(folder)]
    spec = PathFinder.find_spec(source.partition(".")[0], [*first, *sys.path])
    inner = list(spec.submodule_search_locations or []) if spec else []
    origin = (inner[0] if inner else spec.origin) if spec else None
    package = None if origin is None else Path(origin).resolve()
    return f"module {source}:{name} in {package}", package


def _locate_model(name_or_path: str | os.PathLike[str]) -> tuple[str, Path]:
    path = Path(name_or_path).expanduser().resolve()
    return f"model {path if path.is_dir() else os.fspath(name_or_path)}", path


def _require(code: str, path: Path | None = None, *, named: str) -> None:
    if not _is_allowed(code):
        raise ConfigError(
            f"the settings in {_untrusted[-1]} name {named}. Nobody has used it from there on "
            "this machine before, so it may be another person's. If you trust it, add "
            "--trust-remote-code (in Python: trust_remote_code=True)."
        )
    _remember(code, path)


def _is_allowed(code: str) -> bool:
    return not _untrusted or code in _remembered or _is_saved(code)


def _remember(code: str, path: Path | None = None) -> None:
    """Save it for later commands; if it cannot be saved, they will ask again."""
    if code in _remembered:
        return
    _remembered.add(code)
    # Code in a run folder may be replaced together with the folder, so it is not saved.
    if (path is not None and is_in_run(path / "x")) or _is_saved(code):
        return
    with contextlib.suppress(OSError, RuntimeError):
        file = _remembered_file()
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(file, "a", encoding="utf-8") as lines:
            lines.write(f"{json.dumps(code)}\n")


def _is_saved(code: str) -> bool:
    # There may be no file yet or no home, and a full disk may have cut a line.
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        return json.dumps(code) in _remembered_file().read_text(encoding="utf-8").splitlines()
    return False


def _remembered_file() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "turnwise" / "trusted-code"
