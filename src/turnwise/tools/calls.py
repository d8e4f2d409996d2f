"""`ToolCall`: what a model asked for, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class ToolCall:
    """One call of a tool.

    >>> ToolCall("weather", {"city": "Oslo"})
    ToolCall(name='weather', arguments={'city': 'Oslo'}, result=None, success=None)
    """

    name: str
    """The tool, as the model wrote it; it may not exist."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """As the model wrote them, not yet checked."""
    result: Any = None
    """What the tool returned, or the message that says why it did not. None: not called yet."""
    success: bool | None = None
    """Whether it worked. None: not called yet."""
