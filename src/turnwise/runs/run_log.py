"""`log.txt` of a run: what turnwise logs while it trains, whatever the user's logging shows."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from turnwise.legible import LegibleFormatter


@contextlib.contextmanager
def logged_to(file: Path, level: str) -> Iterator[None]:
    """Write what turnwise logs into a file too, at this level.

    The logger's level must be that of the file. The user's own handlers still get only what they
    would get without the run: a script that logs warnings does not print every step.
    """
    logger = logging.getLogger("turnwise")
    before, level_of_others = logger.level, logger.getEffectiveLevel()
    handler = logging.FileHandler(file, encoding="utf-8")
    handler.setFormatter(LegibleFormatter("%(asctime)s %(levelname)s %(message)s"))

    def is_for_others(record: logging.LogRecord) -> bool:
        is_ours = record.name.partition(".")[0] == "turnwise"
        return not is_ours or record.levelno >= level_of_others

    others = [*logging.getLogger().handlers, *logger.handlers]
    for other in others:
        other.addFilter(is_for_others)
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    try:
        yield
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)
        for other in others:
            other.removeFilter(is_for_others)
        handler.close()
