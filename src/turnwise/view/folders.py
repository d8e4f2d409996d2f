"""Finds runs and their files. Nothing outside of a run's folder is ever opened."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

from turnwise.errors import ConfigError
from turnwise.runs.run_folder import RunFolder

# Either file makes a folder a run; a copy of a run may lack the first.
_MARKS = ("run.json", "metrics.jsonl")
_DEPTH = 3
"""How many levels below the named folder are searched for runs."""
_EPISODES = re.compile(r"([a-z][a-z-]*)-(\d{8,18})\.npz")

FileKey: TypeAlias = tuple[str, int]
"""Kind and step of a file of episodes: ("train", 12)."""


class FileStamp(NamedTuple):
    """Identifies the content of a file: another stamp means that the file changed."""

    inode: int
    size: int
    changed: int


@dataclass(frozen=True)
class RunFiles:
    """The files of one run that are really inside its folder."""

    path: Path
    """The run's folder with symbolic links resolved."""

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.path)

    def inside(self, path: Path) -> Path | None:
        """Return the path of a plain file or folder inside the run; None otherwise.

        A link may lead out of the run, and opening a pipe would block until something writes to it.
        """
        try:
            mode = os.lstat(path).st_mode
            if path.parent == self.path and (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                return path  # no link: the usual case, many times a second
            found = path.resolve(strict=True)
            is_plain = found.is_file() or found.is_dir()
        except (OSError, RuntimeError, ValueError):
            return None
        return found if is_plain and found.is_relative_to(self.path) else None

    def stamp(self, path: Path) -> FileStamp | None:
        found = self.inside(path)
        return None if found is None else _stamp(found)

    def episode_files(self) -> dict[FileKey, FileStamp]:
        """Return every file of episodes with its stamp."""
        folder = self.inside(self.folder.episodes)
        found: dict[FileKey, FileStamp] = {}
        if folder is None:
            return found
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    match = _EPISODES.fullmatch(entry.name)
                    if match is None or not entry.is_file(follow_symlinks=False):
                        continue
                    kind = "train" if match[1] == "step" else match[1]
                    key = kind, int(match[2])
                    if match[2] == f"{key[1]:08d}" and match[1] != "train":
                        about = entry.stat(follow_symlinks=False)
                        found[key] = FileStamp(about.st_ino, about.st_size, about.st_mtime_ns)
        except OSError:  # the folder was removed
            return found
        return found


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


def is_run(path: Path) -> bool:
    return any((path / mark).is_file() for mark in _MARKS)


def _runs_in(path: Path, depth: int) -> Iterator[Path]:
    if is_run(path):
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


def _stamp(path: Path) -> FileStamp | None:
    try:
        about = path.stat()
    except OSError:
        return None
    return FileStamp(about.st_ino, about.st_size, about.st_mtime_ns)
