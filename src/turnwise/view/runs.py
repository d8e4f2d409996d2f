"""A run that the viewer shows, with its status, metrics and episodes."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnwise.errors import ConfigError
from turnwise.runs.checkpoints import BestMark, read_best_mark
from turnwise.runs.episode_store import (
    file_name,
    older_format,
    read_phases,
    read_table,
)
from turnwise.runs.episode_table import Phase, StoredEpisode, table_to_episodes
from turnwise.view.episode_list import EpisodeList
from turnwise.view.metrics import MetricsReader
from turnwise.view.notes import NO_NOTES, NOTES_FILE, change_notes, read_notes
from turnwise.view.query import overview
from turnwise.view.run_files import (
    MAX_FILE_BYTES,
    FileKey,
    FileStamp,
    RunFiles,
    describe,
    legible_path,
    locked_inodes,
)
from turnwise.view.token_texts import TokenTexts
from turnwise.yaml_files import read_yaml

_LOG = logging.getLogger("turnwise")
_MAX_CONFIG_BYTES = 2**18
_MAX_PROBLEMS = 5
_MAX_PROBLEM = 500
_PATIENCE_SECONDS = 0.1
"""How long a request waits for the doctor's findings; the rest is sent later."""
_READ_SECONDS = 0.1
"""How long a request or a poll reads episodes."""
_FRESH_SECONDS = 60.0
"""A run whose lock is not visible counts as live if it wrote within this time."""
_COARSE_NS = 3_000_000_000
"""Some file systems keep times of changes only to a second or two."""


class NotFound(ConfigError):
    """There is no such run or episode."""


class ViewedRun:
    """One run, in its current state."""

    def __init__(self, key: str, path: Path) -> None:
        self.key = key
        self.files = RunFiles(path)
        self.metrics = MetricsReader()
        self.episodes = EpisodeList(self.files.folder.episodes)
        self._episode_files: dict[FileKey, FileStamp] = {}
        """The existing files of episodes; `episodes` may not have them yet."""
        self._older_format: str | None = None
        self._failure: str | None = None
        self.updated: float | None = None
        """When the run was last written to, as of the last `refresh`."""
        self._best_checkpoint: dict[str, Any] | None = None
        self._began: float | None = None
        self._noting = threading.Lock()
        self._seen: object = None
        self._folder_stamp: FileStamp | None = None
        self._texts: tuple[FileStamp | None, TokenTexts] | None = None

    # ---- what changed ----

    def refresh(self, seconds: float = _READ_SECONDS) -> bool:
        """Read what is new and return whether anything is. Errors are added to `problems`.

        Episodes are read for so long; the others are read at the next poll.
        """
        try:
            return self._refresh(seconds)
        except Exception as error:
            return self.note_failure(error)

    def open_episodes(self, seconds: float = _READ_SECONDS) -> bool:
        """Read what is new, and from now on the episodes too, which until now were counted."""
        self.episodes.is_open = True
        return self.refresh(seconds)

    def _refresh(self, seconds: float) -> bool:
        folder = self.files.folder
        self._find_episodes()
        has_read = self.episodes.update(self._episode_files, seconds)
        self.metrics.update(self.files.inside(folder.metrics_file))
        paths = (folder.status_file, folder.metrics_file, folder.log_file)
        stamps = [stamp for path in paths if (stamp := self.files.stamp(path)) is not None]
        self.updated = max((stamp.changed / 1e9 for stamp in stamps), default=None)
        self._status()
        self.notes()
        self._best_checkpoint = self._read_best_checkpoint()
        best, read = self._best_checkpoint, self.files.stamps_read
        seen = (stamps[:2], read, self._episode_files, self.is_live, best)
        is_new, self._seen = seen != self._seen, seen
        return is_new or has_read

    def _find_episodes(self) -> None:
        stamp = self.files.stamp(self.files.folder.episodes)
        is_settled = stamp is not None and time.time_ns() - stamp.changed > _COARSE_NS
        if stamp != self._folder_stamp or not is_settled:
            self._episode_files = self.files.episode_files()
            self._older_format = older_format(self.files.folder.episodes)
            self._folder_stamp = stamp

    @property
    def is_live(self) -> bool:
        if self._status(as_last_read=True).get("status") != "running":
            return False
        lock = self.files.stamp(self.files.path / ".lock")
        if lock is not None and lock.inode in locked_inodes():
            return True
        return time.time() - (self.updated or 0.0) < _FRESH_SECONDS

    # ---- what cannot be read ----

    @property
    def problems(self) -> list[str]:
        """The reasons why some of the run cannot be shown."""
        found = [self._failure, self.metrics.problem, *self.files.problems]
        found += [self.episodes.problem, self._older_format]
        return [problem[:_MAX_PROBLEM] for problem in found if problem][:_MAX_PROBLEMS]

    def note_failure(self, error: Exception) -> bool:
        """Record an error that is shown and logged once; return whether it is new."""
        found = describe(error)
        if found == self._failure:
            return False
        self._failure = found
        _LOG.warning("the run %s cannot be read: %s", self.key, found)
        return True

    # ---- what the page receives ----

    def summary(self) -> dict[str, Any]:
        """Return the run for the list; of one that cannot be read, the name and the reason."""
        try:
            return self._summary(self._status(as_last_read=True), self.metrics.last, self.is_live)
        except Exception as error:
            self.note_failure(error)
            return self._summary({}, {}, False)

    def _summary(
        self, status: Mapping[str, Any], last: Mapping[str, Any], is_live: bool
    ) -> dict[str, Any]:
        step = last.get("step", status.get("step", 0))
        return {
            "key": self.key,
            "path": legible_path(self.files.path),
            "name": self.key.partition("~")[0],
            "environment": str(status.get("environment", "")),
            "status": str(status.get("status", "")),
            "step": step,
            "total_steps": status.get("num_steps"),
            "started": self._started,
            "updated": self.updated,
            "num_episodes": self.episodes.num_episodes,
            "headline": self._headline(status) if last else None,
            "best_checkpoint": self._best_checkpoint,
            "last": last,
            "is_live": is_live,
            "indexed": self.indexed(),
            "notes": self.notes(as_last_read=True),
            "problems": self.problems,
        }

    def _headline(self, status: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the headline of the run, which `turnwise.runs.headline` computes for all."""
        evaluation = status.get("evaluation")
        found = self.metrics.headline(evaluation if isinstance(evaluation, str) else None)
        return None if found is None else found.to_dict()

    def _read_best_checkpoint(self) -> dict[str, Any] | None:
        """Return which checkpoint is the best and by which metric; None if there is none."""
        path = self.files.folder.checkpoints / "best.json"
        none: BestMark | None = None
        found = self.files.read(path, lambda file: read_best_mark(file.parent), none)
        if found is None:
            return None
        folder = self.files.inside(path.parent / f"step-{found.step:08d}")
        return None if folder is None else found.to_dict()

    def detail(self) -> dict[str, Any]:
        self.metrics.examine(_PATIENCE_SECONDS)
        return {
            **self.summary(),
            **overview(self.episodes),
            "config": self.config(),
            "changes": self._changes(),
            **self.metrics.findings(),
            "log_tail": self.files.log_tail(),
        }

    def indexed(self) -> dict[str, int]:
        """Return how many files of episodes were read, of how many."""
        return {"files": self.episodes.num_files, "of": len(self._episode_files)}

    @property
    def has_unread_episodes(self) -> bool:
        return self.episodes.num_files < len(self._episode_files)

    def _status(self, as_last_read: bool = False) -> dict[str, Any]:
        """Return the status; as it was last read, where there may be thousands of runs to list."""
        file, folder = self.files.folder.status_file, self.files.folder
        return self.files.read(file, lambda path: folder.status, {}, as_last_read=as_last_read)

    def _changes(self) -> list[dict[str, Any]]:
        folder, none = self.files.folder, list[dict[str, Any]]()
        return self.files.read(folder.changes_file, lambda path: folder.changes, none)

    def config(self) -> dict[str, Any]:
        """Return the settings; empty if they cannot be read. Parsing YAML is slow."""
        path = self.files.folder.config_file
        return self.files.read(path, lambda found: read_yaml(found, _MAX_CONFIG_BYTES), {})

    def facts(self, name: str) -> dict[str, Any]:
        """Return `identity` or `provenance` of `run.json`; empty if it has none."""
        found = self._status().get(name)
        return dict(found) if isinstance(found, Mapping) else {}

    def notes(self, as_last_read: bool = False) -> dict[str, Any]:
        """Return the user's tags and note, and whether the run is archived."""
        path, none = self.files.path / NOTES_FILE, dict(NO_NOTES)
        found = self.files.read(path, read_notes, none, as_last_read=as_last_read)
        return {name: found[name] for name in NO_NOTES}

    def change_notes(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Save some of the notes, and return all of them."""
        with self._noting:
            change_notes(self.files.path, changes)
        return self.notes()

    @property
    def _started(self) -> float | None:
        """The time of the first line of the log, which never changes."""
        if self._began is None:
            self._began = self.files.first_log_time()
        return self._began

    # ---- stored episodes ----

    def step_episodes(self, key: FileKey) -> tuple[list[StoredEpisode], list[Phase]]:
        """Return the episodes of a kind and step, and the phases of their step."""
        path = self._episode_path(key)
        table = read_table(path, max_bytes=MAX_FILE_BYTES)
        return table_to_episodes(table, str(path)), read_phases(path)

    def episode(self, name: str) -> tuple[FileKey, int, StoredEpisode]:
        """Return the episode with an id such as "train-12-3"."""
        match = re.fullmatch(r"([a-z][a-z-]{0,63})-([0-9]{1,18})-([0-9]{1,9})", name)
        if match is None:
            raise NotFound(f"there is no episode {name[:80]!r}; an id is, for example, train-12-3")
        key, place = (match[1], int(match[2])), int(match[3])
        path = self._episode_path(key)
        try:
            table = read_table(path, row=place, max_bytes=MAX_FILE_BYTES)
        except IndexError:
            raise NotFound(
                f"step {key[1]} has fewer {key[0]} episodes, and none with number {place}"
            ) from None
        return key, place, table_to_episodes(table, str(path))[0]

    def _episode_path(self, key: FileKey) -> Path:
        if key not in self._episode_files:
            self._episode_files = self.files.episode_files()
        folder = self.files.inside(self.files.folder.episodes)
        if key not in self._episode_files or folder is None:
            raise NotFound(f"the run {self.key} has no {key[0]} episodes of step {key[1]}")
        return folder / file_name(*key)

    @property
    def token_texts(self) -> TokenTexts:
        path = self.files.folder.tokenizer_file
        stamp = self.files.stamp(path)
        if self._texts is None or self._texts[0] != stamp:
            self._texts = stamp, TokenTexts(self.files.inside(path))
        return self._texts[1]
