"""turnwise: train language-model agents by reinforcement learning in your own environments.

`turnwise.__all__` is what most users need; everything else is public in its own module. Names are
imported when they are first used, so `import turnwise` is quick and imports no torch. The names and
their modules are those of `__init__.pyi`.
"""

from __future__ import annotations

import ast
import importlib

from turnwise.assemblers import ASSEMBLERS

TYPE_CHECKING = False  # `typing` takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.1.0"

with open(f"{__file__}i", encoding="utf-8") as _file:
    _stub = ast.parse(_file.read()).body
_MODULES = {
    alias.name: node.module
    for node in _stub
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}
"""The module of each name; that of a module is `turnwise`."""
(__all__,) = [ast.literal_eval(node.value) for node in _stub if isinstance(node, ast.Assign)]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        from turnwise.errors import did_you_mean

        raise AttributeError(f"turnwise has no {name!r}. {did_you_mean(name, _MODULES)}")
    if _MODULES[name] == "turnwise":
        value: Any = importlib.import_module(f"turnwise.{name}")
    else:
        value = getattr(importlib.import_module(str(_MODULES[name])), name)
    globals()[name] = value  # the next use does not come here again
    return value


def _assemble_on_ray(*args: Any) -> Any:
    from turnwise.scale.ray import assemble  # imports Ray

    return assemble(*args)


ASSEMBLERS["ray"] = _assemble_on_ray


def __dir__() -> list[str]:
    return sorted(["__version__", *_MODULES])
