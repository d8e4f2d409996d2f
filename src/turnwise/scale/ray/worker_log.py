"""Passes the log lines of workers on to the log of the run."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from typing import TypeAlias

Lines: TypeAlias = list[tuple[int, str]]
"""Level and text of each line."""

_LOG = logging.getLogger("turnwise")
_MAX_LINES = 1000


class WorkerLog(logging.Handler):
    """Keeps the newest log lines of this process until they are sent to the driver."""

    def __init__(self, level: str) -> None:
        super().__init__()
        self._lines = deque[tuple[int, str]](maxlen=_MAX_LINES)
        _LOG.addHandler(self)
        _LOG.setLevel(level.upper())

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append((record.levelno, record.getMessage()))

    def take(self) -> Lines:
        """Return the lines that were not taken yet."""
        lines = []
        while self._lines:
            lines.append(self._lines.popleft())
        return lines


def log_for(worker: str, lines: Iterable[tuple[int, str]]) -> None:
    """Log the lines of a worker."""
    for level, text in lines:
        _LOG.log(level, "%s: %s", worker, text)
