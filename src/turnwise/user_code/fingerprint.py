"""A hash of what code does: it changes with the code, not with comments or layout.

The hash covers the definition and everything of the user's that it reaches by name: functions,
classes and constants of the same module, of other files of the project, and values that a closure
or an instance holds. Code of installed packages counts by its name alone; their versions are
recorded elsewhere.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import linecache
import sysconfig
from collections.abc import Collection, Iterable, Mapping
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
        self._open: set[int] = set()
        """Containers whose items are being added, so that one that contains itself ends."""

    def add(self, value: object) -> None:
        if len(self._seen) >= _MOST_OBJECTS:
            return
        if isinstance(value, _PLAIN):
            self.lines.append(repr(value))
        elif isinstance(value, Mapping | list | tuple | set | frozenset):
            self._add_container(value)
        elif id(value) in self._seen:
            self.lines.append(f"again {_label(value)}")
        else:
            self._seen[id(value)] = value
            self._add_object(value)

    def _add_container(self, value: Mapping[Any, Any] | Collection[Any]) -> None:
        # Equal tuples may or may not be one object: containers are written out each time.
        self.lines.append(f"{type(value).__name__} of {len(value)}")
        if id(value) in self._open:
            return
        self._open.add(id(value))
        if isinstance(value, Mapping):
            self._add_all(item for pair in value.items() for item in pair)
        elif isinstance(value, set | frozenset):
            self._add_all(sorted((x for x in value if isinstance(x, _PLAIN)), key=repr))
        else:
            self._add_all(value)
        self._open.discard(id(value))

    def _add_object(self, value: object) -> None:
        if isinstance(value, functools.partial):
            self._add_all([value.func, value.args, value.keywords])
        elif isinstance(value, ModuleType):
            self._add_module(value)
        elif isinstance(value, type):
            self._add_class(value)
        elif inspect.ismethod(value):
            self._add_all([value.__func__, value.__self__])
        elif isinstance(value, FunctionType):
            self._add_function(value)
        elif inspect.isroutine(value):
            self.lines.append(f"built-in {_label(value)}")
        else:
            self._add_instance(value)

    def _add_all(self, values: Iterable[object]) -> None:
        for value in values:
            self.add(value)

    def _add_module(self, module: ModuleType) -> None:
        file = getattr(module, "__file__", None)
        self.lines.append(f"module {module.__name__}")
        if file is not None and not is_foreign(file):
            tree = _parsed(_source(file))
            if tree is not None:
                self.lines.append(ast.dump(tree))

    def _add_class(self, cls: type) -> None:
        self.lines.append(f"class {_label(cls)}")
        file, own = _file_of(cls), _own_functions(cls)
        if file is None or is_foreign(file):
            return
        node = _definition_node(file, cls.__qualname__)
        if node is None:  # made by a call, such as `type(...)`: its bases and methods count
            self._add_all([*cls.__bases__, *own])
            return
        self.lines.append(ast.dump(node))
        names = own[0].__globals__ if own else getattr(inspect.getmodule(cls), "__dict__", {})
        self._add_names(node, names)
        for function in own:
            self._add_closure(function)

    def _add_function(self, function: FunctionType) -> None:
        self.lines.append(f"function {_label(function)}")
        file = function.__code__.co_filename
        if is_foreign(file):
            return
        node = _definition_node(file, function.__qualname__)
        if node is None:  # a lambda, or code without a file
            self.lines.append(_code_text(function.__code__))
            self._add_all(
                function.__globals__[name]
                for name in _code_names(function.__code__)
                if name in function.__globals__
            )
        else:
            self.lines.append(ast.dump(node))
            self._add_names(node, function.__globals__)
        self._add_all([function.__defaults__, function.__kwdefaults__])
        self._add_closure(function)

    def _add_closure(self, function: FunctionType) -> None:
        for cell in function.__closure__ or ():
            try:
                self.add(cell.cell_contents)
            except ValueError:  # not filled yet
                continue

    def _add_instance(self, value: object) -> None:
        self.add(type(value))
        state = getattr(value, "__dict__", None)
        if isinstance(state, dict) and not is_foreign(_file_of(type(value))):
            self.add({name: item for name, item in state.items() if not name.startswith("__")})

    def _add_names(self, node: ast.AST, names: Mapping[str, Any]) -> None:
        """Follow the global names that a definition uses, in the order of their names."""
        used = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
        for name in sorted(used & names.keys()):
            self.lines.append(f"name {name}")
            self.add(names[name])


def _label(value: object) -> str:
    kind: Any = value if hasattr(value, "__qualname__") else type(value)
    return f"{kind.__qualname__}"


def _plain_function(attribute: object) -> FunctionType | None:
    if isinstance(attribute, property):
        attribute = attribute.fget
    if isinstance(attribute, staticmethod | classmethod):
        attribute = attribute.__func__
    attribute = inspect.unwrap(attribute) if callable(attribute) else attribute
    return attribute if isinstance(attribute, FunctionType) else None


def _own_functions(cls: type) -> list[FunctionType]:
    """Return the functions that the class defines itself."""
    functions = [f for f in map(_plain_function, vars(cls).values()) if f is not None]
    return [f for f in functions if f.__module__ == cls.__module__]


def _file_of(cls: type) -> str | None:
    # A class of a notebook has no file, but its methods have one in `linecache`.
    own = _own_functions(cls)
    if own:
        return own[0].__code__.co_filename
    try:
        return inspect.getsourcefile(cls)
    except (TypeError, OSError):  # built in, or typed at a prompt
        return None


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
    return any(path.resolve().is_relative_to(place) for place in _installed_places())


@functools.cache
def _installed_places() -> tuple[Path, ...]:
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple(Path(sysconfig.get_path(kind)).resolve() for kind in kinds)


def _definition_node(file: str, qualname: str) -> ast.AST | None:
    """Return the definition of `Outer.inner` in a file, the last one if there are several."""
    tree = _parsed(_source(file))
    node: ast.AST | None = tree
    for name in qualname.replace(".<locals>", "").split("."):
        node = None if node is None else _named(node, name)
    return node


def _source(file: str) -> str:
    linecache.checkcache(file)  # a file may have changed since
    return "".join(linecache.getlines(file))


def _named(node: ast.AST, name: str) -> ast.AST | None:
    kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    found = None
    waiting = list(ast.iter_child_nodes(node))
    while waiting:
        inner = waiting.pop(0)
        if isinstance(inner, kinds):
            found = inner if inner.name == name else found
        else:  # an `if` or `try` around a definition
            waiting += ast.iter_child_nodes(inner)
    return found


@functools.lru_cache(maxsize=64)
def _parsed(source: str) -> ast.Module | None:
    """Return the syntax tree without docstrings."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    for node in ast.walk(tree):
        match getattr(node, "body", None):
            case [ast.Expr(value=ast.Constant(value=str())), *_] as body:
                body[:] = body[1:] or [ast.Pass()]
    return tree


def _code_text(code: CodeType) -> str:
    consts = [
        _code_text(item) if isinstance(item, CodeType) else repr(item) for item in code.co_consts
    ]
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {consts}"


def _code_names(code: CodeType) -> list[str]:
    inner = [item for item in code.co_consts if isinstance(item, CodeType)]
    return sorted({*code.co_names, *(name for item in inner for name in _code_names(item))})
