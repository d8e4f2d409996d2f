"""A hash of what code does: it changes with the code, not with comments or layout.

The hash covers the compiled definition and everything of the user's that it reaches by name:
functions, classes and constants of the same module, of other files of the project, and values that
a closure or an instance holds. Code of installed packages counts by its name alone; their versions
are recorded elsewhere.
"""

import dis
import functools
import hashlib
import inspect
import linecache
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

_MOST_OBJECTS = 2000
_PACKAGE = Path(__file__).resolve().parents[1]
_PLAIN = (int, float, complex, str, bytes, bool, type(None))


def fingerprint(value: object) -> str:
    """Return 16 hex digits that stay the same while the code of `value` does the same."""
    walk = _Walk()
    walk.add(value)
    text = "\n".join(walk.lines)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


class _Walk:
    """Collects a line for each definition that can be reached; each object is visited once."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._seen: dict[int, object] = {}  # keeps objects alive: ids are not reused
        self._open: set[int] = set()  # containers being added: one may contain itself

    def add(self, value: Any) -> None:
        if len(self._seen) >= _MOST_OBJECTS:
            return
        if isinstance(value, _PLAIN):
            self.lines.append(repr(value))
            return
        if isinstance(value, Mapping | list | tuple | set | frozenset):
            # Equal tuples may or may not be one object: containers are written out each time.
            self.lines.append(f"{type(value).__name__} of {len(value)}")
            if id(value) not in self._open:
                self._open.add(id(value))
                self._add_all(_items(value))
                self._open.discard(id(value))
            return
        label = getattr(value, "__qualname__", type(value).__qualname__)
        if id(value) in self._seen:
            self.lines.append(f"again {label}")
            return
        self._seen[id(value)] = value
        if isinstance(value, functools.partial):
            self._add_all([value.func, value.args, value.keywords])
        elif isinstance(value, ModuleType):
            self.lines.append(f"module {value.__name__}")
            # What a module defines itself: functions, classes and constants.
            is_ours = not is_foreign(getattr(value, "__file__", None))
            for name, item in sorted(vars(value).items()) if is_ours else ():
                is_constant = isinstance(item, _PLAIN) and not name.startswith("__")
                if is_constant or getattr(item, "__module__", None) == value.__name__:
                    self.add(item)
        elif isinstance(value, type):
            self.lines.append(f"class {label}")
            if not is_foreign(_file_of_class(value)):
                self._add_class(value)
        elif isinstance(value, FunctionType):
            self.lines.append(f"function {label}")
            if not is_foreign(value.__code__.co_filename):
                self._add_function(value)
        elif inspect.ismethod(value):
            self._add_all([value.__func__, value.__self__])
        elif isinstance(value, property):
            self._add_all([value.fget, value.fset])
        elif hasattr(value, "__wrapped__"):  # a static method, a cached function
            self.add(value.__wrapped__)
        elif inspect.isroutine(value):
            self.lines.append(f"built-in {label}")
        else:
            self.add(type(value))
            state = getattr(value, "__dict__", None)
            if isinstance(state, dict) and not is_foreign(_file_of_class(type(value))):
                self.add({name: item for name, item in state.items() if not name.startswith("__")})

    def _add_all(self, values: Iterable[object]) -> None:
        for value in values:
            self.add(value)

    def _add_class(self, cls: type) -> None:
        self._add_all(cls.__bases__)
        self.lines += sorted(vars(cls).get("__annotations__", ()))  # the fields of a dataclass
        for field in vars(cls).get("__dataclass_fields__", {}).values():
            self.add(field.default_factory)
        for name, item in sorted(vars(cls).items()):
            if not name.startswith("__") or isinstance(item, FunctionType):
                self.lines.append(f"attribute {name}")
                self.add(item)

    def _add_function(self, function: FunctionType) -> None:
        names = function.__globals__
        for name in sorted(self._add_code(function.__code__)):
            if name in names:
                self.lines.append(f"name {name}")
                self.add(names[name])
        self._add_all([function.__defaults__, function.__kwdefaults__])
        for cell in function.__closure__ or ():
            try:
                self.add(cell.cell_contents)
            except ValueError:  # not filled yet
                continue

    def _add_code(self, code: CodeType) -> set[str]:
        """Add what the code does, also that inside of it, and return the global names it uses.

        A docstring is no instruction, and lines of the source are left out.
        """
        names = set()
        self.lines.append(f"takes {code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]}")
        for instruction in dis.get_instructions(code):
            value = instruction.argval
            self.lines.append(instruction.opname)
            if isinstance(value, CodeType):
                names |= self._add_code(value)
            else:
                self.add(value)
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                names.add(value)
        return names


def _items(value: Any) -> Iterable[object]:
    if isinstance(value, Mapping):
        return [item for pair in value.items() for item in pair]
    if isinstance(value, set | frozenset):  # in an order of its own
        return sorted((item for item in value if isinstance(item, _PLAIN)), key=repr)
    return list(value)


def _file_of_class(cls: type) -> str | None:
    # A class of a notebook has no file, but its methods have one in `linecache`.
    for item in vars(cls).values():
        function = inspect.unwrap(item) if callable(item) else item
        is_method = isinstance(function, FunctionType) and function.__module__ == cls.__module__
        if is_method and function.__code__.co_filename != "<string>":  # which a dataclass generates
            return str(function.__code__.co_filename)
    return getattr(sys.modules.get(cls.__module__), "__file__", None)


def is_foreign(file: str | None) -> bool:
    """Return whether a file belongs to an installed package, or there is no file."""
    if file is None or (file.startswith("<") and not linecache.getlines(file)):
        return True
    return _is_foreign_file(file)


# Called for each frame of each failure, and resolving a path is slow.
@functools.lru_cache(maxsize=4096)
def _is_foreign_file(file: str) -> bool:
    return is_installed(Path(file)) or Path(file).resolve().is_relative_to(_PACKAGE)


def is_installed(path: Path) -> bool:
    """Return whether a file belongs to Python or to an installed package."""
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = [Path(sysconfig.get_path(kind)).resolve() for kind in kinds]
    return any(path.resolve().is_relative_to(folder) for folder in folders)
