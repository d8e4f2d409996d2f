"""Reads the files of a run: none outside of its folder, and each again when it changed."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from turnwise.errors import ConfigError
from turnwise.runs.episode_store import episode_files
from turnwise.runs.run_folder import RunFolder

_LOG_TAIL = 16_000
MAX_FILE_BYTES = 2**29
"""The limit for one file, unpacked."""
T = TypeVar("T")

FileKey: TypeAlias = tuple[str, int]
"""Kind and step of a file of episodes: ("train", 12)."""


class FileStamp(NamedTuple):
    """Identifies the content of a file: another stamp means that the file changed."""

    inode: int
    size: int
    changed: int

    @classmethod
    def of(cls, about: os.stat_result) -> FileStamp:
        return cls(about.st_ino, about.st_size, about.st_mtime_ns)


class _Seen(NamedTuple):
    """The content of a file when it was last read."""

    stamp: FileStamp | None
    value: Any
    problem: str | None


class RunFiles:
    """The files of one run that are really inside its folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        """The run's folder with symbolic links resolved."""
        self.folder = RunFolder(path)
        self._seen: dict[str, _Seen] = {}

    @property
    def stamps_read(self) -> dict[str, FileStamp | None]:
        """The stamps of the files that were read."""
        return {name: seen.stamp for name, seen in self._seen.items()}

    @property
    def problems(self) -> list[str | None]:
        """Why files could not be read."""
        return [seen.problem for seen in list(self._seen.values())]

    def read(
        self, path: Path, read: Callable[[Path], T], empty: T, *, as_last_read: bool = False
    ) -> T:
        """Return a file's content, read again when it changed; `empty` if it cannot be read.

        With `as_last_read`, a file that was read before is not looked at again.
        """
        seen = self._seen.get(path.name)
        value: T = empty if seen is None else seen.value
        if seen is not None and as_last_read:
            return value
        stamp = self.stamp(path)
        if seen is not None and seen.stamp == stamp and stamp is not None:
            return value
        problem, value = None, empty
        try:
            if (found := self.inside(path)) is not None:
                value = read(found)
            elif os.path.lexists(path):
                problem = f"{path} is no plain file of the run"
        except FileNotFoundError:
            pass  # the file was removed
        except Exception as error:
            problem = describe(error)
        self._seen[path.name] = _Seen(stamp, value, problem)
        return value

    def first_log_time(self) -> float | None:
        """Return the time in the first line of the log."""
        path = self.inside(self.folder.log_file)
        if path is None:
            return None
        with contextlib.suppress(OSError, ValueError, OverflowError), open(path, "rb") as log:
            line = log.read(19).decode("ascii", "replace")
            return time.mktime(time.strptime(line, "%Y-%m-%d %H:%M:%S"))
        return None

    def log_tail(self) -> str:
        """Return the last lines of the log."""
        path = self.inside(self.folder.log_file)
        if path is None:
            return ""
        with contextlib.suppress(OSError), open(path, "rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(size - _LOG_TAIL, 0))
            text = log.read(_LOG_TAIL).decode("utf-8", "replace")
            return text if size <= _LOG_TAIL else text.partition("\n")[2]
        return ""

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
        with contextlib.suppress(OSError):
            return None if found is None else FileStamp.of(found.stat())
        return None

    def episode_files(self) -> dict[FileKey, FileStamp]:
        """Return every file of episodes with its stamp."""
        folder = self.inside(self.folder.episodes)
        stamps: dict[FileKey, FileStamp] = {}
        with contextlib.suppress(OSError):  # the folder was removed
            for key, path in ({} if folder is None else episode_files(folder)).items():
                about = os.lstat(path)
                if stat.S_ISREG(about.st_mode):
                    stamps[key] = FileStamp.of(about)
        return stamps


def legible_path(path: Path) -> str:
    """Return a path as text, with bytes replaced that are not UTF-8."""
    return os.fsencode(path).decode("utf-8", "replace")


def describe(error: Exception) -> str:
    """Return an error in one line; errors of other packages with their type."""
    return str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"


_LOCKS: tuple[float, set[int]] = (0.0, set())


def locked_inodes() -> set[int]:
    """Return the files that a process has locked, from the system's list.

    Trying a lock could disturb a run that is just starting.
    """
    global _LOCKS  # noqa: PLW0603 - read at most twice a second for all runs
    when, inodes = _LOCKS
    if time.monotonic() - when > 0.5:
        inodes = set()
        with contextlib.suppress(OSError):
            found = re.findall(r"FLOCK.* \w+:\w+:(\d+) ", Path("/proc/locks").read_text())
            inodes = set(map(int, found))
        _LOCKS = time.monotonic(), inodes
    return inodes
