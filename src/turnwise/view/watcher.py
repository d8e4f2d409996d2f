"""Keeps the runs of a library current: a thread polls for changes and reads new episodes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from turnwise.view.library import Library
from turnwise.view.run_files import describe
from turnwise.view.runs import ViewedRun

_LOG = logging.getLogger("turnwise")

POLL_SECONDS = 1.0
_FIND_SHARE = 20
"""The search for runs in a large tree of folders may take 1 / this of the time."""
_POLL_SHARE = 3
_DOCTOR_SECONDS = 0.2
_CONFIG_SECONDS = 0.5
"""Seconds of each round for reading settings, only to check that they can be read."""


class Watcher:
    """Keeps a library current, and sends a notification when something changed."""

    def __init__(self, library: Library, on_change: Callable[[], None]) -> None:
        self._library = library
        self._on_change = on_change
        self._stop = threading.Event()
        self._next_find = 0.0
        self._thread = threading.Thread(target=self._poll, name="turnwise-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)

    def _poll(self) -> None:
        pause = 0.0
        while not self._stop.wait(pause):
            started = time.monotonic()
            try:
                changed = self._find()
                for run in self._library.runs:
                    if not self._stop.is_set() and _refresh(run, started + _CONFIG_SECONDS):
                        changed = True
                if changed:
                    self._on_change()
            except Exception as error:
                _LOG.error("polling for changes failed and is tried again: %s", describe(error))
            # Polling thousands of runs takes long; most of the time belongs to the page's requests.
            pause = max(POLL_SECONDS, _POLL_SHARE * (time.monotonic() - started))
            if any(run.has_unread_episodes for run in self._library.runs):
                pause = 0.0

    def _find(self) -> bool:
        """Look for new runs; less often where that takes long."""
        started = time.monotonic()
        if started < self._next_find:
            return False
        changed = self._library.find()
        took = time.monotonic() - started
        self._next_find = started + _FIND_SHARE * took
        return changed


def _refresh(run: ViewedRun, deadline: float) -> bool:
    """Return whether a run changed; an error in one run does not affect the others."""
    try:
        changed = run.refresh() | run.metrics.examine(_DOCTOR_SECONDS)
        if time.monotonic() < deadline:
            run.config()
        return changed
    except Exception as error:
        return run.note_failure(error)
