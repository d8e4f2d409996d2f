"""The library of runs that the viewer shows: found in folders, and kept current by a thread."""

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, count
from pathlib import Path

from turnwise.errors import ConfigError
from turnwise.view.run_files import describe, locked_inodes
from turnwise.view.runs import NotFound, ViewedRun

_LOG = logging.getLogger("turnwise")

# Either file makes a folder a run; a copy of a run may lack the first.
_MARKS = ("run.json", "metrics.jsonl")
_DEPTH = 3
"""How many levels below the named folder are searched for runs."""
_POLL_SECONDS = 1.0
_POLL_SHARE = 3


class Library:
    """The runs in some folders; new ones are found while the viewer is open."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = list(folders)
        self._runs: dict[Path, ViewedRun] = {}
        self._keys: dict[str, ViewedRun] = {}
        self._lock = threading.Lock()

    def find(self) -> bool:
        """Look for runs; return whether there are others than before."""
        paths: set[Path] = set()
        for folder in self.folders:
            root = folder.resolve()
            inner = (path.resolve() for path in _runs_in(root, _DEPTH))
            paths.update(path for path in inner if path.is_relative_to(root))
        with self._lock:
            gone, new = self._runs.keys() - paths, paths - self._runs.keys()
            for path in gone:
                run = self._runs.pop(path)
                del self._keys[run.key]
            for path in sorted(new):
                # The folder's name, made unique; a run keeps the key that it got.
                name = re.sub(r"[^\w.+=-]+", "-", path.name, flags=re.ASCII) or "run"
                names = chain([name], (f"{name}~{number}" for number in count(2)))
                key = next(key for key in names if key not in self._keys)
                self._runs[path] = self._keys[key] = ViewedRun(key, path)
        return bool(gone or new)

    @property
    def runs(self) -> list[ViewedRun]:
        """The runs, the last written first."""
        with self._lock:
            runs = list(self._runs.values())
        return sorted(runs, key=lambda run: (-(run.updated or 0.0), run.key))

    def get(self, key: str) -> ViewedRun:
        with self._lock:
            run = self._keys.get(key)
        if run is not None:
            return run
        raise NotFound(f"there is no run {key[:80]!r} here. GET /api/runs lists them.")


def check_folders(folders: Sequence[Path]) -> None:
    """Refuse what can never hold a run.

    A folder that is empty or does not exist yet may get one; if its parent does not exist either,
    the path is misspelt.
    """
    for folder in folders:
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"{folder} is a file, expected the folder of a run or of many runs")
        if not folder.exists() and not folder.absolute().parent.is_dir():
            raise ConfigError(
                f"there is no folder {folder}, and none {folder.parent} in which it could appear. "
                "Name the folder of a run, or the one in which your runs are: turnwise view runs"
            )


def _runs_in(path: Path, depth: int) -> Iterator[Path]:
    if any((path / mark).is_file() for mark in _MARKS):
        yield path
        return
    if depth == 0:
        return
    try:
        inner = sorted(e.name for e in os.scandir(path) if e.is_dir() and e.name[0] != ".")
    except OSError:
        return
    for name in inner:
        yield from _runs_in(path / name, depth - 1)


class Watcher:
    """A thread that keeps a library current, and tells when something changed."""

    def __init__(self, library: Library, on_change: Callable[[], None]) -> None:
        self._library = library
        self._on_change = on_change
        self._stop = threading.Event()
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
                changed, locked = self._library.find(), locked_inodes()
                for run in self._library.runs:
                    if self._stop.is_set():
                        break
                    changed |= run.refresh(locked=locked)
                if changed:
                    self._on_change()
            except Exception as error:
                _LOG.error("polling for changes failed and is tried again: %s", describe(error))
            # Polling thousands of runs takes long; most of the time belongs to the page's requests.
            pause = max(_POLL_SECONDS, _POLL_SHARE * (time.monotonic() - started))
            if any(run.has_unread_episodes for run in self._library.runs):
                pause = 0.0
