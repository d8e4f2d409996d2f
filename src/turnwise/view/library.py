"""The library of runs that the viewer shows, found in folders."""

import os
import re
import threading
from collections.abc import Iterator, Sequence
from itertools import chain, count
from pathlib import Path

from turnwise.view.run_files import locked_inodes
from turnwise.view.runs import NotFound, ViewedRun

# Either file makes a folder a run; a copy of a run may lack the first.
_MARKS = ("run.json", "metrics.jsonl")
_DEPTH = 3
"""How many levels below the named folder are searched for runs."""


class Library:
    """The runs in some folders; new ones are found while the viewer is open."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = list(folders)
        self._runs: dict[Path, ViewedRun] = {}
        self._keys: dict[str, ViewedRun] = {}
        self._lock = threading.Lock()

    def find(self) -> bool:
        """Look for runs; return whether there are others than before."""
        paths = {
            path.resolve() for folder in self.folders for path in _runs_in(folder.resolve(), _DEPTH)
        }
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

    def refresh(self) -> bool:
        """Look for runs and for what is new in them; return whether anything is."""
        changed, locked = self.find(), locked_inodes()
        for run in self.runs:
            changed |= run.refresh(locked=locked)
        return changed

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


def _runs_in(path: Path, depth: int) -> Iterator[Path]:
    if any(os.path.isfile(path / mark) for mark in _MARKS):
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
