"""The names of user code: where it is defined, so that a later command can import it again."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeAlias

from turnwise.user_code.fingerprint import fingerprint, is_installed

Origin: TypeAlias = Literal["turnwise", "installed", "file", "script", "notebook", "interactive"]
"""The kind of place that defines the code; script: the one that was run, interactive: a prompt."""
_TARGET = re.compile(r"(.+\.py|[^\W\d][\w.]*):[^\W\d][\w.]*")


def names_code(text: str) -> bool:
    """Return whether a text is written as `file.py:Name` or `module:Name`.

    >>> names_code("agents/shop.py:buy"), names_code("my-cli --task {task}")
    (True, False)
    """
    return _TARGET.fullmatch(text) is not None


@dataclass(frozen=True)
class CodeReference:
    """A function, class or object of a user, as a run folder records it.

    >>> reference_to(Path).target
    'pathlib:Path'
    """

    name: str
    """The qualified name: `Greenhouse`, `score.<locals>.inner`, `<lambda>`."""
    origin: Origin
    target: str | None
    """`file.py:Name` or `module:Name`, from which it can be imported; None if it cannot be."""

    @property
    def label(self) -> str:
        """The target, or `<notebook>:Name` and the like for code that cannot be imported again."""
        if self.target is not None:
            return self.target
        kind = self.origin if self.origin in ("notebook", "interactive") else "function"
        return f"<{kind}>:{self.name}"


def reference_to(value: object) -> CodeReference:
    """Describe where `value` was defined: a function, a class, a bound method or an instance."""
    definition = _definition(value)
    module = sys.modules.get(getattr(definition, "__module__", None) or "")
    name = str(getattr(definition, "__qualname__", type(definition).__qualname__))
    origin = _origin(module)
    named: Any = module
    for part in name.split("."):
        named = getattr(named, part, None)
    # The code that made an instance is not recorded: only its class can be imported.
    is_named = (_definition(named) if callable(named) else named) is definition
    if module is None or not is_named or origin in ("notebook", "interactive"):
        return CodeReference(name, origin, None)
    # A module of a package may have relative imports, which need the whole package.
    if origin in ("turnwise", "installed") or (origin == "file" and module.__package__):
        return CodeReference(name, origin, f"{module.__name__}:{name}")
    file, here = Path(str(module.__file__)).resolve(), Path.cwd()
    path = file.relative_to(here) if file.is_relative_to(here) else file
    return CodeReference(name, origin, f"{path}:{name}")


def _definition(value: Any) -> Any:
    """Return the function or class that a file defines."""
    while isinstance(value, functools.partial):
        value = value.func
    value = inspect.unwrap(value) if callable(value) else value
    if inspect.ismethod(value):
        value = value.__func__
    return value if isinstance(value, type) or inspect.isroutine(value) else type(value)


def _origin(module: ModuleType | None) -> Origin:
    if module is None:
        return "interactive"
    if module.__name__.split(".")[0] == "turnwise":
        return "turnwise"
    file = getattr(module, "__file__", None)
    if module.__name__ == "__main__":
        if file is not None and file.endswith(".py"):
            return "script"
        return "notebook" if "ipykernel" in sys.modules else "interactive"
    if file is None or is_installed(Path(file)):
        return "installed"
    return "file"


def callable_label(function: Any) -> str:
    """Return the name of a function; a callable object, or a method of one, gets a label."""
    is_object = not isinstance(function, type) and not hasattr(function, "__code__")
    return object_label(function) if is_object else reference_to(function).label


def object_label(value: object) -> str:
    """Return a label for an object that cannot be imported."""
    return f"<object>:{type(value).__qualname__}"


def instance_label(value: object) -> str:
    """Return the name of the class that makes an equal object without arguments, or a label.

    Objects of installed packages are never compared: their fingerprint leaves their state out.
    """
    reference = reference_to(value)
    is_equal = False
    if reference.target is not None and reference.origin != "installed":
        try:
            other = type(value)()
            if reference.origin == "turnwise":
                is_equal = bool(vars(other) == vars(value))
            else:
                is_equal = fingerprint(other) == fingerprint(value)
        except Exception:  # the user's constructor takes arguments
            is_equal = False
    return reference.label if is_equal else object_label(value)


def is_lost(label: str) -> bool:
    """Whether a label names an object that a later command cannot import."""
    return label.startswith("<") and ">:" in label
