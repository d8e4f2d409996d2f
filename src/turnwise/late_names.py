"""Names that a package has, and that are imported when they are first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any


def late_names(package: str, module: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package: what its `__all__` has, and it has not, is `module`'s.

    So a package can have names whose module needs the package itself. Use it beside an import for
    type checkers: a `__getattr__` that these see would hide every misspelt import.
    """

    def import_name(name: str) -> Any:
        if name not in getattr(sys.modules[package], "__all__", ()):
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(module), name)
        setattr(sys.modules[package], name, value)  # the next use does not come here again
        return value

    return import_name
