"""What workers log, into the log of the run."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from typing import TypeAlias

Lines: TypeAlias = list[tuple[int, str]]
"""Level and text of each."""

_LOG = logging.getLogger("turnwise")
_MOST_LINES = 1000


class WorkerLog(logging.Handler):
    """Keeps what turnwise logs in this process until it is handed over, the newest lines of it."""

    def __init__(self, level: str) -> None:
        super().__init__()
        self._lines = deque[tuple[int, str]](maxlen=_MOST_LINES)
        _LOG.addHandler(self)
        _LOG.setLevel(level.upper())

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append((record.levelno, record.getMessage()))

    def take(self) -> Lines:
        """What was not handed over yet."""
        lines = []
        while self._lines:
            lines.append(self._lines.popleft())
        return lines


def log_for(worker: str, lines: Iterable[tuple[int, str]]) -> None:
    """Log what a worker has handed over."""
    for level, text in lines:
        _LOG.log(level, "%s: %s", worker, text)
