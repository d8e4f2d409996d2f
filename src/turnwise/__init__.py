"""turnwise: train language-model agents by reinforcement learning in your own environments.

`turnwise.__all__` is what most users need; everything else is public in its own module. Names are
imported when they are first used, so `import turnwise` is quick and imports no torch. The table of
names is in `turnwise/_names.py`.
"""

from __future__ import annotations

from turnwise._names import FACE_NAMES, MODULES, find
from turnwise.assemblers import ASSEMBLERS

TYPE_CHECKING = False  # `typing` takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.1.0"
__all__ = [*FACE_NAMES]


def __getattr__(name: str) -> Any:
    value = find(name)
    globals()[name] = value  # the next use does not come here again
    return value


def _assemble_on_ray(*args: Any) -> Any:
    from turnwise.scale.ray import assemble  # imports Ray

    return assemble(*args)


ASSEMBLERS["ray"] = _assemble_on_ray


def __dir__() -> list[str]:
    return sorted(["__version__", *__all__, *MODULES])
