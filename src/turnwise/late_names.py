"""Names that a package has, and that are imported when they are first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any


def late_names(package: str, module: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package: names only in its `__all__` are `module`'s.

    So that the module can need the package. Type checkers get an import instead: a `__getattr__`
    would hide misspelt names from them.
    """

    def import_name(name: str) -> Any:
        if name not in getattr(sys.modules[package], "__all__", ()):
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(module), name)
        setattr(sys.modules[package], name, value)  # the next use does not come here again
        return value

    return import_name
