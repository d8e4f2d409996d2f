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
        self._open: set[int] = set()
        """Containers whose items are being added, so that one that contains itself ends."""

    def add(self, value: object) -> None:
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
            if not is_foreign(getattr(value, "__file__", None)):
                self.lines.append(ast.dump(_parsed(_source(str(value.__file__)))))
        elif isinstance(value, type):
            self.lines.append(f"class {label}")
            self._add_class(value)
        elif inspect.ismethod(value):
            self._add_all([value.__func__, value.__self__])
        elif isinstance(value, FunctionType):
            self.lines.append(f"function {label}")
            self._add_function(value)
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
        file, functions = _file_of_class(cls), _functions(cls)
        if file is None or is_foreign(file):
            return
        node = _definition_node(file, cls.__qualname__)
        if node is None:  # made by a call, such as `type(...)`: its bases and methods count
            self._add_all([*cls.__bases__, *functions])
            return
        module = getattr(inspect.getmodule(cls), "__dict__", {})
        self._add_node(node, functions[0].__globals__ if functions else module)
        for function in functions:
            self._add_closure(function)

    def _add_function(self, function: FunctionType) -> None:
        file = function.__code__.co_filename
        if is_foreign(file):
            return
        node = _definition_node(file, function.__qualname__)
        if node is not None:
            self._add_node(node, function.__globals__)
        else:  # a lambda, or code without a file
            text, names = _code(function.__code__)
            self.lines.append(text)
            self._add_all(
                function.__globals__[name] for name in sorted(names) if name in function.__globals__
            )
        self._add_all([function.__defaults__, function.__kwdefaults__])
        self._add_closure(function)

    def _add_node(self, node: ast.AST, names: Mapping[str, Any]) -> None:
        """Add a definition, and follow the global names that it uses."""
        self.lines.append(ast.dump(node))
        used = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
        for name in sorted(used & names.keys()):
            self.lines.append(f"name {name}")
            self.add(names[name])

    def _add_closure(self, function: FunctionType) -> None:
        for cell in function.__closure__ or ():
            try:
                self.add(cell.cell_contents)
            except ValueError:  # not filled yet
                continue


def _items(value: Any) -> Iterable[object]:
    if isinstance(value, Mapping):
        return [item for pair in value.items() for item in pair]
    if isinstance(value, set | frozenset):  # in an order of its own
        return sorted((item for item in value if isinstance(item, _PLAIN)), key=repr)
    return list(value)


def _functions(cls: type) -> list[FunctionType]:
    """Return the functions that the class defines itself."""
    functions = []
    for attribute in vars(cls).values():
        function: Any = attribute.fget if isinstance(attribute, property) else attribute
        if isinstance(function, staticmethod | classmethod):
            function = function.__func__
        function = inspect.unwrap(function) if callable(function) else function
        if isinstance(function, FunctionType) and function.__module__ == cls.__module__:
            functions.append(function)
    return functions


def _file_of_class(cls: type) -> str | None:
    # A class of a notebook has no file, but its methods have one in `linecache`.
    functions = _functions(cls)
    if functions:
        return functions[0].__code__.co_filename
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
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = [Path(sysconfig.get_path(kind)).resolve() for kind in kinds]
    return any(path.resolve().is_relative_to(folder) for folder in folders)


def _definition_node(file: str, qualname: str) -> ast.AST | None:
    """Return the definition of `Outer.inner` in a file, the last one if there are several."""
    node: ast.AST | None = _parsed(_source(file))
    for name in qualname.replace(".<locals>", "").split("."):
        waiting, node = list(ast.iter_child_nodes(node)) if node else [], None
        while waiting:
            inner = waiting.pop(0)
            if isinstance(inner, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                node = inner if inner.name == name else node
            else:  # an `if` or `try` around a definition
                waiting += ast.iter_child_nodes(inner)
    return node


def _source(file: str) -> str:
    linecache.checkcache(file)  # a file may have changed since
    return "".join(linecache.getlines(file))


@functools.lru_cache(maxsize=64)
def _parsed(source: str) -> ast.Module:
    """Return the syntax tree without docstrings; an empty one if it is no Python."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return ast.Module([], [])
    for node in ast.walk(tree):
        match getattr(node, "body", None):
            case [ast.Expr(value=ast.Constant(value=str())), *_] as body:
                body[:] = body[1:] or [ast.Pass()]
    return tree


def _code(code: CodeType) -> tuple[str, set[str]]:
    """Return the text of compiled code, with the code inside of it, and the names that it uses."""
    names, consts = set(code.co_names), []
    for item in code.co_consts:
        text, inner = _code(item) if isinstance(item, CodeType) else (repr(item), set())
        consts.append(text)
        names |= inner
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {consts}", names
