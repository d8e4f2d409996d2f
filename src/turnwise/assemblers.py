"""Other ways to assemble a run than in this process, by name.

The trainer finds them here and imports none of them, so that imports go one way. The table is
filled in `turnwise/__init__.py`, which may import everything.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` takes longer to import than all of this
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

ASSEMBLERS: dict[str, Callable[..., Any]] = {}
"""Functions with the signature of `turnwise.trainer.assembly.assemble`."""
