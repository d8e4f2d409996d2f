"""The files of a run: read again when they changed, and the user's notes.

The notes are all that the viewer writes: tags, a note, and whether the run is archived. They are
kept in the run's own folder, apart from what the run itself writes, so that they move and are
deleted with the run:

    notes.json    {"tags": ["baseline"], "note": "the one of the paper", "archived": false}
"""

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from turnwise.errors import ConfigError
from turnwise.json_files import read_json_object
from turnwise.runs.episode_store import episode_files
from turnwise.runs.run_folder import RunFolder
from turnwise.whole_files import write_whole

_LOG_TAIL = 16_000
NOTES_FILE = "notes.json"
NO_NOTES: Mapping[str, Any] = {"tags": [], "note": "", "archived": False}
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
        self.folder = RunFolder(path)
        self._read: dict[str, tuple[FileStamp, Any]] = {}
        self.problems: dict[str, str] = {}
        """Why files could not be read, by their names."""

    def read(self, path: Path, read: Callable[[Path], T]) -> T | None:
        """Return a file's content, read again when it changed; None if it cannot be read."""
        stamp, value = file_stamp(path), None
        if path.name in self._read and self._read[path.name][0] == stamp:
            cached: T | None = self._read[path.name][1]
            return cached
        self.problems.pop(path.name, None)
        if stamp is not None:
            try:
                value = read(path)
            except Exception as error:
                self.problems[path.name] = describe(error)
            self._read[path.name] = stamp, value
        return value

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


def first_log_time(file: Path) -> float | None:
    """Return the time in the first line of a log."""
    with contextlib.suppress(OSError, ValueError), open(file, "rb") as log:
        return time.mktime(time.strptime(log.read(19).decode(), "%Y-%m-%d %H:%M:%S"))
    return None


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


# ---- notes ----


class NotesNotSaved(ConfigError):
    """The notes cannot be written into the run's folder."""


def read_notes(path: Path) -> dict[str, Any]:
    """Return the notes of a run, complete; none if there is no such file."""
    notes = read_json_object(path) if path.exists() else {}
    return {**NO_NOTES, **_checked(notes, str(path))}


def change_notes(folder: Path, changes: Any) -> None:
    """Change some of a run's notes.

    A file that cannot be read is not replaced: somebody wrote it. Fields that are not ours stay.
    """
    if not isinstance(changes, dict) or not changes.keys() <= NO_NOTES.keys():
        raise ConfigError(f"notes got {changes!r:.80}, expected tags, note or archived")
    notes = {**read_notes(folder / NOTES_FILE), **_checked(changes, "notes")}
    text = json.dumps(notes, ensure_ascii=False, indent=1)
    try:
        write_whole(folder / NOTES_FILE, f"{text}\n".encode("utf-8", "replace"))
    except OSError as error:
        raise NotesNotSaved(
            f"the notes cannot be saved in {folder}: {error.strerror}. They belong in the run's "
            "folder, which the user who started `turnwise view` must be able to write."
        ) from error


def _checked(notes: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return checked notes, each tag once; raise `ConfigError` for values of another kind."""
    tags = notes.get("tags", [])
    are_right = all(isinstance(notes.get(name, it), type(it)) for name, it in NO_NOTES.items())
    if not are_right or not all(isinstance(tag, str) and tag and "," not in tag for tag in tags):
        raise ConfigError(
            f"{where} got {notes!r:.200}, expected tags: a list of texts without commas, note: "
            "text, archived: true or false"
        )
    words = list(dict.fromkeys(" ".join(tag.split()) for tag in tags))
    return {**notes, "tags": words} if "tags" in notes else dict(notes)
