"""Log records while a run is displayed: each is shown once, and none tears the display."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any, Self

PROGRESS = {"is_progress": True}
"""`extra` of the records that say what a display shows too."""


class Warnings(logging.Handler):
    """Hands what turnwise logs as a warning to a display, in the place of the standard error."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(record.getMessage())

    def __enter__(self) -> Self:
        logging.getLogger("turnwise").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("turnwise").removeHandler(self)


@contextlib.contextmanager
def shown_elsewhere() -> Iterator[None]:
    """Keep what a display shows from the user's own handlers that print to the same place.

    `logging.basicConfig(level=logging.INFO)` would else print every line twice. Files that the
    user logs to get everything.
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
    """Let handlers that print to the terminal print to these streams instead, above a display.

    A handler keeps the stream that it was made with: what it wrote there would tear the picture.
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
