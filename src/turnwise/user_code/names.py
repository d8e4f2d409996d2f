"""A user's code by name: from `file.py:Name` or `module:Name` to the object, and back."""

import contextlib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from turnwise.errors import ConfigError, did_you_mean
from turnwise.user_code.fingerprint import fingerprint, is_installed
from turnwise.user_code.trust import require_code

_GUARD = 'if __name__ == "__main__":'
_STAMP = "__turnwise_stamp__"
"""The attribute of a user's module with its file's modification time and size."""
_TARGET = re.compile(r"(.+\.py|[^\W\d][\w.]*):[^\W\d][\w.]*")
_LOST = {
    "<notebook>": "was defined in a notebook",
    "<interactive>": "was typed at a Python prompt",
    "<function>": "was defined inside a function or without a name",
    "<object>": "is an object that a script made",
}
_importing: list[Path] = []
"""Files that are being imported now, the innermost last."""


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


def _import_module(name: str, target: str) -> ModuleType:
    if name in sys.modules:
        return sys.modules[name]
    files = (module_file(name, Path(entry)) for entry in sys.path)
    try:
        with _guarded(next((file for file in files if file is not None), Path(name))):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # An import that fails inside the module is not a wrong name of the module.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(
            f"there is no module {name!r} for {target!r}. "
            "A file is written with its ending: path/to/file.py:Name"
        ) from None


@contextlib.contextmanager
def _guarded(path: Path) -> Iterator[None]:
    """Guard the top level of a file: it must neither train nor exit."""
    _importing.append(path)
    try:
        yield
    except SystemExit as error:
        raise ConfigError(
            f"{path} ended with {error!r} when it was imported. Put what the file does as a "
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
    """Return the function or class that a file defines."""
    while isinstance(value, functools.partial):
        value = value.func
    value = inspect.unwrap(value) if callable(value) else value
    if inspect.ismethod(value):
        value = value.__func__
    return value if isinstance(value, type) or inspect.isroutine(value) else type(value)


def callable_label(function: Any) -> str:
    """Return the name of a function; a callable object, or a method of one, gets a label."""
    is_object = not isinstance(function, type) and not hasattr(function, "__code__")
    return object_label(function) if is_object else code_name(function)


def object_label(value: object) -> str:
    """Return a label for an object that cannot be imported."""
    return f"<object>:{type(value).__qualname__}"


def instance_label(value: object) -> str:
    """Return the name of the class that makes an equal object without arguments, or a label.

    Objects of installed packages are never compared: a fingerprint leaves their state out.
    """
    package = type(value).__module__.partition(".")[0]
    file = getattr(sys.modules.get(type(value).__module__), "__file__", None)
    try:
        other = type(value)()
        if package == "turnwise":
            is_equal = bool(vars(other) == vars(value))
        elif file is None or is_installed(Path(file)):
            is_equal = False
        else:
            is_equal = fingerprint(vars(other)) == fingerprint(vars(value))
    except Exception:  # the user's constructor takes arguments, or objects have no attributes
        is_equal = False
    name = code_name(value)
    return name if is_equal and not is_lost(name) else object_label(value)


def is_lost(label: str) -> bool:
    """Whether a label names an object that a later command cannot import."""
    return label.startswith("<") and ">:" in label
