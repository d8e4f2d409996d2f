"""The library of runs that the viewer shows, found in folders."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Sequence
from itertools import chain, count
from pathlib import Path

from turnwise.errors import ConfigError
from turnwise.view.runs import NotFound, ViewedRun

# Either file makes a folder a run; a copy of a run may lack the first.
_MARKS = ("run.json", "metrics.jsonl")
_DEPTH = 3
"""How many levels below the named folder are searched for runs."""


class Library:
    """The runs in some folders; new ones are found while the viewer is open."""

    def __init__(self, places: Sequence[Path]) -> None:
        self.places = list(places)
        self._runs: dict[Path, ViewedRun] = {}
        self._keys: dict[str, ViewedRun] = {}
        self._lock = threading.Lock()

    def find(self) -> bool:
        """Look for runs; return whether there are others than before."""
        paths = set(find_runs(self.places))
        with self._lock:
            gone, new = self._runs.keys() - paths, paths - self._runs.keys()
            for path in gone:
                run = self._runs.pop(path)
                del self._keys[run.key]
            for path in sorted(new):
                run = ViewedRun(self._free_key(path), path)
                self._runs[path] = self._keys[run.key] = run
        return bool(gone or new)

    def _free_key(self, path: Path) -> str:
        """Return the folder's name, made unique; a run keeps the key that it got."""
        name = re.sub(r"[^\w.+=-]+", "-", path.name, flags=re.ASCII) or "run"
        numbered = (f"{name}~{number}" for number in count(2))
        return next(key for key in chain([name], numbered) if key not in self._keys)

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


def find_runs(places: Sequence[Path]) -> Iterator[Path]:
    """Yield the runs that these folders are or contain, each once."""
    seen: set[Path] = set()
    for place in places:
        root = place.resolve()
        for found in _runs_in(root, _DEPTH):
            path = found.resolve()
            if path not in seen and path.is_relative_to(root):
                seen.add(path)
                yield path


def check_places(places: Sequence[Path]) -> None:
    """Refuse what can never hold a run.

    A folder that is empty or does not exist yet may get one; if its parent does not exist either,
    the path is misspelt.
    """
    for place in places:
        if place.exists() and not place.is_dir():
            raise ConfigError(f"{place} is a file, expected the folder of a run or of many runs")
        if not place.exists() and not place.absolute().parent.is_dir():
            raise ConfigError(
                f"there is no folder {place}, and none {place.parent} in which it could appear. "
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
