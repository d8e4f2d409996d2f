"""Reads the files of a run, each again when it changed."""

import contextlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from turnwise.errors import ConfigError
from turnwise.runs.episode_store import episode_files
from turnwise.runs.run_folder import RunFolder

_LOG_TAIL = 16_000
T = TypeVar("T")

FileKey: TypeAlias = tuple[str, int]
"""Kind and step of a file of episodes: ("train", 12)."""


class FileStamp(NamedTuple):
    """Identifies the content of a file: another stamp means that the file changed."""

    inode: int
    size: int
    changed: int


class RunFiles:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = RunFolder(path)
        self._read: dict[str, tuple[FileStamp, Any]] = {}
        self.problems: dict[str, str] = {}
        """Why files could not be read, by their names."""

    def read(self, path: Path, read: Callable[[], T], empty: T) -> T:
        """Return a file's content, read again when it changed; `empty` if it cannot be read."""
        stamp, value = file_stamp(path), empty
        known = self._read.get(path.name)
        if known is not None and known[0] == stamp:
            cached: T = known[1]
            return cached
        self.problems.pop(path.name, None)
        if stamp is not None:
            try:
                value = read()
            except Exception as error:
                self.problems[path.name] = describe(error)
            self._read[path.name] = stamp, value
        return value

    def first_log_time(self) -> float | None:
        """Return the time in the first line of the log."""
        with contextlib.suppress(OSError, ValueError), open(self.folder.log_file, "rb") as log:
            line = log.read(19).decode("ascii", "replace")
            return time.mktime(time.strptime(line, "%Y-%m-%d %H:%M:%S"))
        return None

    def log_tail(self) -> str:
        """Return the last lines of the log."""
        with contextlib.suppress(OSError), open(self.folder.log_file, "rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(size - _LOG_TAIL, 0))
            text = log.read(_LOG_TAIL).decode("utf-8", "replace")
            return text if size <= _LOG_TAIL else text.partition("\n")[2]
        return ""

    def episode_files(self) -> dict[FileKey, FileStamp]:
        """Return every file of episodes with its stamp."""
        paths = episode_files(self.folder.episodes)
        stamps = {key: file_stamp(path) for key, path in paths.items()}
        return {key: stamp for key, stamp in stamps.items() if stamp is not None}


def file_stamp(path: Path) -> FileStamp | None:
    """Return the stamp of a file or folder; None if it is not there."""
    with contextlib.suppress(OSError):
        about = os.stat(path)
        return FileStamp(about.st_ino, about.st_size, about.st_mtime_ns)
    return None


def locked_inodes() -> set[int]:
    """Return the files that processes of this machine have locked, by the system's own list.

    Trying the lock of a run could disturb one that is just starting.
    """
    with contextlib.suppress(OSError):
        locks = Path("/proc/locks").read_text()
        return {int(inode) for inode in re.findall(r"FLOCK.* \w+:\w+:(\d+) ", locks)}
    return set()


def legible_path(path: Path) -> str:
    """Return a path as text, with bytes replaced that are not UTF-8."""
    return os.fsencode(path).decode("utf-8", "replace")


def describe(error: Exception) -> str:
    """Return an error in one line; errors of other packages with their type."""
    return str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
