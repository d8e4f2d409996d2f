"""All runs that are looked at, and each one's parts: status, metrics, index, decoded episodes."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from turnwise.errors import ConfigError
from turnwise.runs.episode_records import StoredEpisode
from turnwise.view.decoded import DecodedFile, DecodedFiles
from turnwise.view.folders import FileKey, FileStamp, RunFiles, find_runs
from turnwise.view.index import Index, IndexBroken, index_path
from turnwise.view.metrics import MetricsReader
from turnwise.view.query import overview
from turnwise.view.token_texts import TokenTexts
from turnwise.yaml_files import read_yaml

_LOG_TAIL = 16_000
_PATIENCE_SECONDS = 0.1
"""For what the doctor says; what he has not read by then comes later."""
_FRESH_SECONDS = 60.0
"""A run whose lock cannot be seen lives if it wrote something since."""
_COARSE_NS = 3_000_000_000
"""Some disks tell a change only by the second or two."""


class NotFound(ConfigError):
    """There is no such run or episode."""


class ViewedRun:
    """One run, as it stands now."""

    def __init__(self, key: str, path: Path, decoded: DecodedFiles) -> None:
        self.key = key
        self.files = RunFiles(path)
        self.metrics = MetricsReader()
        self.index = Index(index_path(path))
        self.episode_files: dict[FileKey, FileStamp] = {}
        """Those that there are; the index may not have them yet."""
        self.num_indexed = 0
        self._decoded = decoded
        self._seen: object = None
        self._folder_stamp: FileStamp | None = None
        self._texts: tuple[FileStamp | None, TokenTexts] | None = None

    # ---- what changed ----

    def look(self) -> bool:
        """Read what is new; whether anything is."""
        folder = self.files.folder
        stamps = [
            self.files.stamp(path)
            for path in (folder.status_file, folder.metrics_file, folder.config_file)
        ]
        self._look_for_episodes()
        self.metrics.update(self.files.inside(folder.metrics_file))
        seen = (stamps, self.episode_files, self.num_indexed, self.is_live)
        is_new, self._seen = seen != self._seen, seen
        return is_new

    def _look_for_episodes(self) -> None:
        stamp = self.files.stamp(self.files.folder.episodes)
        is_settled = stamp is not None and time.time_ns() - stamp.changed > _COARSE_NS
        if stamp != self._folder_stamp or not is_settled:
            self.episode_files = self.files.episode_files()
            self._folder_stamp = stamp

    @property
    def updated(self) -> float | None:
        folder = self.files.folder
        paths = (folder.status_file, folder.metrics_file, folder.log_file)
        stamps = [stamp for path in paths if (stamp := self.files.stamp(path)) is not None]
        return max((stamp.changed / 1e9 for stamp in stamps), default=None)

    @property
    def is_live(self) -> bool:
        if self._status().get("status") != "running":
            return False
        lock = self.files.stamp(self.files.path / ".lock")
        if lock is not None and lock.inode in _locked_inodes():
            return True
        return time.time() - (self.updated or 0.0) < _FRESH_SECONDS

    # ---- what the page is told ----

    def summary(self) -> dict[str, Any]:
        status = self._status()
        step = self.metrics.last.get("step", status.get("step", 0))
        return {
            "key": self.key,
            "path": os.fsencode(self.files.path).decode("utf-8", "replace"),
            "name": self.key.partition("~")[0],
            "environment": str(status.get("environment", "")),
            "status": str(status.get("status", "")),
            "step": step,
            "total_steps": status.get("num_steps"),
            "started": self._started(),
            "updated": self.updated,
            "num_episodes": self.num_episodes(),
            "best_reward": self.metrics.best("reward"),
            "last": self.metrics.last,
            "is_live": self.is_live,
            "indexed": self.indexed(),
        }

    def detail(self) -> dict[str, Any]:
        self.metrics.examine(_PATIENCE_SECONDS)
        with self.index.connection() as db:
            choices = overview(db)
        return {
            **self.summary(),
            **choices,
            "config": self._config(),
            **self.metrics.findings(),
            "log_tail": self._log_tail(),
        }

    def indexed(self) -> dict[str, int]:
        return {
            "files": min(self.num_indexed, len(self.episode_files)),
            "of": len(self.episode_files),
        }

    def num_episodes(self) -> int:
        with contextlib.suppress(IndexBroken), self.index.connection() as db:
            (number,) = db.execute("SELECT count(*) FROM episodes").fetchone()
            return int(number)
        return 0

    def _status(self) -> dict[str, Any]:
        folder = self.files.folder
        if self.files.inside(folder.status_file) is None:
            return {}
        status: Any = folder.status
        return status if isinstance(status, dict) else {}

    def _config(self) -> dict[str, Any]:
        path = self.files.inside(self.files.folder.config_file)
        try:
            return {} if path is None else read_yaml(path)
        except (OSError, ConfigError):
            return {}

    def _started(self) -> float | None:
        """The first line of the log says when it was written."""
        path = self.files.inside(self.files.folder.log_file)
        if path is None:
            return None
        with contextlib.suppress(OSError, ValueError), open(path, "rb") as log:
            line = log.read(19).decode("ascii", "replace")
            return time.mktime(time.strptime(line, "%Y-%m-%d %H:%M:%S"))
        return None

    def _log_tail(self) -> str:
        path = self.files.inside(self.files.folder.log_file)
        if path is None:
            return ""
        with contextlib.suppress(OSError), open(path, "rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(size - _LOG_TAIL, 0))
            text = log.read(_LOG_TAIL).decode("utf-8", "replace")
            return text if size <= _LOG_TAIL else text.partition("\n")[2]
        return ""

    # ---- episodes as they are kept ----

    def episodes(self, key: FileKey) -> DecodedFile:
        """The episodes of a file, and the phases of their step."""
        if key not in self.episode_files:
            self.episode_files = self.files.episode_files()
        stamp = self.episode_files.get(key)
        folder = self.files.inside(self.files.folder.episodes)
        if stamp is None or folder is None:
            raise NotFound(f"the run {self.key} has no {key[0]} episodes of step {key[1]}")
        return self._decoded.get(folder, key, stamp)

    def episode(self, name: str) -> tuple[FileKey, int, StoredEpisode]:
        """The episode of that id: "train-12-3"."""
        match = re.fullmatch(r"([a-z][a-z-]{0,63})-([0-9]{1,18})-([0-9]{1,9})", name)
        if match is None:
            raise NotFound(f"there is no episode {name[:80]!r}; an id is, for example, train-12-3")
        key, place = (match[1], int(match[2])), int(match[3])
        episodes = self.episodes(key).episodes
        if place >= len(episodes):
            raise NotFound(
                f"step {key[1]} has {len(episodes)} {key[0]} episodes, and none with number {place}"
            )
        return key, place, episodes[place]

    @property
    def token_texts(self) -> TokenTexts:
        path = self.files.folder.tokenizer_file
        stamp = self.files.stamp(path)
        if self._texts is None or self._texts[0] != stamp:
            self._texts = stamp, TokenTexts(self.files.inside(path))
        return self._texts[1]


class Library:
    """The runs that there are; new ones are found while it is open."""

    def __init__(self, places: Sequence[Path]) -> None:
        self.places = list(places)
        self._runs: dict[Path, ViewedRun] = {}
        self._decoded = DecodedFiles()
        self._lock = threading.Lock()

    def find(self) -> bool:
        """Look for runs; whether others are there than before."""
        paths = set(find_runs(self.places))
        with self._lock:
            gone, new = self._runs.keys() - paths, paths - self._runs.keys()
            for path in gone:
                self._runs.pop(path).index.close()
            for path in sorted(new):
                self._runs[path] = ViewedRun(self._free_key(path), path, self._decoded)
        return bool(gone or new)

    def _free_key(self, path: Path) -> str:
        """The folder's name, made unique; one that was given stays with its run."""
        name = re.sub(r"[^\w.+=-]+", "-", path.name, flags=re.ASCII) or "run"
        taken = {run.key for run in self._runs.values()}
        numbers = (f"{name}~{number}" for number in range(2, len(taken) + 3))
        return next(key for key in (name, *numbers) if key not in taken)

    @property
    def runs(self) -> list[ViewedRun]:
        """The one that was written to last comes first."""
        with self._lock:
            runs = list(self._runs.values())
        return sorted(runs, key=lambda run: (-(run.updated or 0.0), run.key))

    def get(self, key: str) -> ViewedRun:
        with self._lock:
            for run in self._runs.values():
                if run.key == key:
                    return run
        raise NotFound(f"there is no run {key[:80]!r} here. GET /api/runs lists them.")

    def close(self) -> None:
        with self._lock:
            for run in self._runs.values():
                run.index.close()


_LOCKS: tuple[float, set[int]] = (0.0, set())


def _locked_inodes() -> set[int]:
    """Files that some process holds, from the system's list: to try a lock could hinder a run
    that is just beginning."""
    global _LOCKS  # noqa: PLW0603 - read at most twice a second, however many runs there are
    when, inodes = _LOCKS
    if time.monotonic() - when > 0.5:
        inodes = set()
        with contextlib.suppress(OSError):
            found = re.findall(r"FLOCK.* \w+:\w+:(\d+) ", Path("/proc/locks").read_text())
            inodes = set(map(int, found))
        _LOCKS = time.monotonic(), inodes
    return inodes
