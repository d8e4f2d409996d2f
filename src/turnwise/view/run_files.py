"""Reads the files of a run: none outside of its folder, and each again when it changed."""

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
"""The limit for one file of episodes, unpacked."""
T = TypeVar("T")

FileKey: TypeAlias = tuple[str, int]
"""Kind and step of a file of episodes: ("train", 12)."""


class FileStamp(NamedTuple):
    """Identifies the content of a file: another stamp means that the file changed."""

    inode: int
    size: int
    changed: int


class RunFiles:
    """The files of one run that are really inside its folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        """The run's folder with symbolic links resolved."""
        self.folder = RunFolder(path)
        self._read: dict[str, tuple[FileStamp | None, Any]] = {}
        self.problems: dict[str, str] = {}
        """Why files could not be read, by their names."""

    def read(self, path: Path, read: Callable[[Path], T], empty: T) -> T:
        """Return a file's content, read again when it changed; `empty` if it cannot be read."""
        stamp = self.stamp(path)
        known = self._read.get(path.name)
        if known is not None and known[0] == stamp and stamp is not None:
            value: T = known[1]
            return value
        problem, value = None, empty
        try:
            if (plain := self.inside(path)) is not None:
                value = read(plain)
            elif os.path.lexists(path):
                problem = f"{path} is no plain file of the run"
        except FileNotFoundError:
            pass  # the file was removed
        except Exception as error:
            problem = describe(error)
        self.problems.pop(path.name, None)
        if problem is not None:
            self.problems[path.name] = problem
        self._read[path.name] = stamp, value
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
            resolved = path.resolve(strict=True)
            is_plain = resolved.is_file() or resolved.is_dir()
        except (OSError, RuntimeError, ValueError):
            return None
        return resolved if is_plain and resolved.is_relative_to(self.path) else None

    def stamp(self, path: Path) -> FileStamp | None:
        plain = self.inside(path)
        with contextlib.suppress(OSError):
            return None if plain is None else _stamp(plain.stat())
        return None

    def episode_files(self) -> dict[FileKey, FileStamp]:
        """Return every file of episodes with its stamp."""
        folder = self.inside(self.folder.episodes)
        stamps: dict[FileKey, FileStamp] = {}
        with contextlib.suppress(OSError):  # the folder was removed
            for key, path in ({} if folder is None else episode_files(folder)).items():
                about = os.lstat(path)
                if stat.S_ISREG(about.st_mode):
                    stamps[key] = _stamp(about)
        return stamps


def locked_inodes() -> set[int]:
    """Return the files that processes of this machine have locked, by the system's own list.

    Trying the lock of a run could disturb one that is just starting.
    """
    with contextlib.suppress(OSError):
        locks = Path("/proc/locks").read_text()
        return {int(inode) for inode in re.findall(r"FLOCK.* \w+:\w+:(\d+) ", locks)}
    return set()


def _stamp(about: os.stat_result) -> FileStamp:
    return FileStamp(about.st_ino, about.st_size, about.st_mtime_ns)


def legible_path(path: Path) -> str:
    """Return a path as text, with bytes replaced that are not UTF-8."""
    return os.fsencode(path).decode("utf-8", "replace")


def describe(error: Exception) -> str:
    """Return an error in one line; errors of other packages with their type."""
    return str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
