"""The console that all commands print on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console
from rich.segment import Segment

from turnwise.legible import legible

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderableType


class LegibleConsole(Console):
    """Styles are its own, and so is every control code: text that is printed has none."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(legible(text), style)
