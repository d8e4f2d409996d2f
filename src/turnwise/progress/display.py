"""What all displays of a run share: a console without control characters, and logging."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.segment import Segment

from turnwise.legible import legible

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderableType

    from turnwise.progress.run_state import RunInfo

PROGRESS = {"is_progress": True}
"""`extra` of log records whose content a display shows as well."""


class LegibleConsole(Console):
    """A rich console that prints no control characters of the text that it is given."""

    @property
    def is_terminal(self) -> bool:
        """Whether lines can be redrawn. CI and `%%bash` in notebooks set FORCE_COLOR for a pipe,
        which rich takes for a terminal."""
        if self._force_terminal is not None:
            return self._force_terminal
        return super().is_terminal and self.file.isatty()

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(legible(text), style)


class PrintedDisplay:
    """Base class of the reporters that show a run to a person.

    While it is entered, it shows the warnings that turnwise logs. Handlers of the user that print
    to the same terminal do not print them a second time; files still get every record.
    """

    def begin(self, run: RunInfo) -> None:
        raise NotImplementedError

    def step(self, metrics: Mapping[str, float]) -> None:
        raise NotImplementedError

    def say(self, text: str) -> None:
        raise NotImplementedError

    def progress(self, what: str, done: int, total: int) -> None:
        """Report the progress of a phase of a step."""

    def end(self, outcome: str) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._printing = printing_handlers()
        for handler in self._printing:
            handler.addFilter(_is_not_displayed)
        self._warnings = _WarningHandler(self)
        logging.getLogger("turnwise").addHandler(self._warnings)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("turnwise").removeHandler(self._warnings)
        for handler in self._printing:
            handler.removeFilter(_is_not_displayed)


class _WarningHandler(logging.Handler):
    """Passes the warnings of turnwise to a display instead of the standard error."""

    def __init__(self, display: PrintedDisplay) -> None:
        super().__init__(logging.WARNING)
        self._display = display

    def emit(self, record: logging.LogRecord) -> None:
        self._display.say(record.getMessage())


def _is_not_displayed(record: logging.LogRecord) -> bool:
    is_ours = record.name == "turnwise" or record.name.startswith("turnwise.")
    is_shown = record.levelno >= logging.WARNING or getattr(record, "is_progress", False)
    return not (is_ours and is_shown)


def printing_handlers() -> list[logging.StreamHandler[Any]]:
    """Return the log handlers that print to the terminal."""
    terminal = [sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__]
    handlers = [*logging.getLogger().handlers, *logging.getLogger("turnwise").handlers]
    return [
        handler
        for handler in handlers
        if isinstance(handler, logging.StreamHandler) and handler.stream in terminal
    ]
