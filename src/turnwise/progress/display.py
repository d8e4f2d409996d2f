"""What all displays of a run share: a console without control characters, and logging."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.segment import Segment

from turnwise.legible import legible

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderableType

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


class Display:
    """Base class of the reporters that show a run to a person.

    While it is entered, it shows the warnings that turnwise logs, and handlers of the user that
    print to the same terminal do not print them a second time.
    """

    def __init__(self) -> None:
        self._entered = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._entered.enter_context(_WarningHandler(self))
        self._entered.enter_context(_not_printed_twice())
        return self

    def __exit__(self, *_: object) -> None:
        self._entered.close()

    def say(self, text: str) -> None:
        """Show one message."""
        raise NotImplementedError

    def _show_warning(self, text: str) -> None:
        self.say(text)


class _WarningHandler(logging.Handler):
    """Passes the warnings of turnwise to a display instead of the standard error."""

    def __init__(self, display: Display) -> None:
        super().__init__(logging.WARNING)
        self._display = display

    def emit(self, record: logging.LogRecord) -> None:
        self._display._show_warning(record.getMessage())

    def __enter__(self) -> Self:
        logging.getLogger("turnwise").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("turnwise").removeHandler(self)


@contextlib.contextmanager
def _not_printed_twice() -> Iterator[None]:
    """Keep displayed records from the user's handlers that print to the same terminal.

    Otherwise `logging.basicConfig(level=logging.INFO)` would print every line twice. Files that
    the user logs to still get every record.
    """
    handlers = _printing_handlers()
    for handler in handlers:
        handler.addFilter(_is_not_displayed)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(_is_not_displayed)


@contextlib.contextmanager
def printed_through(stdout: Any, stderr: Any) -> Iterator[None]:
    """Make handlers that print to the terminal print to these streams instead.

    A handler keeps the stream that it was created with, and would write into a live display.
    """
    moved = []
    for handler in _printing_handlers():
        if isinstance(handler, logging.StreamHandler):
            moved.append((handler, handler.stream))
            is_out = handler.stream in (sys.__stdout__, sys.stdout)
            handler.setStream(stdout if is_out else stderr)
    try:
        yield
    finally:
        for handler, stream in moved:
            handler.setStream(stream)


def _is_not_displayed(record: logging.LogRecord) -> bool:
    is_ours = record.name == "turnwise" or record.name.startswith("turnwise.")
    is_shown = record.levelno >= logging.WARNING or getattr(record, "is_progress", False)
    return not (is_ours and is_shown)


def _printing_handlers() -> list[logging.Handler]:
    terminal = [sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__]
    handlers = [*logging.getLogger().handlers, *logging.getLogger("turnwise").handlers]
    return [handler for handler in handlers if _stream_of(handler) in terminal]


def _stream_of(handler: logging.Handler) -> object:
    if isinstance(handler, logging.StreamHandler):
        return handler.stream
    return getattr(getattr(handler, "console", None), "file", handler)  # rich's handler
