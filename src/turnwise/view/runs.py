"""The runs that the viewer shows, found in folders: their status, metrics and episodes."""

import logging
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any

from turnwise.errors import ConfigError
from turnwise.json_files import read_json_object
from turnwise.runs.checkpoints import CheckpointStore, read_best_mark
from turnwise.runs.doctor import Doctor, settings_if_readable
from turnwise.runs.episode_store import file_name, read_phases, read_table
from turnwise.runs.episode_table import Phase, StoredEpisode, table_to_episodes
from turnwise.runs.headline import headline, is_number, kl_is_informative
from turnwise.runs.metrics_log import MetricsReader
from turnwise.runs.run_folder import RUN_MARKS, RunFolder
from turnwise.view.episodes import EpisodeList, overview
from turnwise.view.payloads import TokenTexts
from turnwise.view.run_files import (
    NO_NOTES,
    NOTES_FILE,
    FileKey,
    FileStamp,
    RunFiles,
    change_notes,
    describe,
    file_stamp,
    first_log_time,
    legible_path,
    locked_inodes,
    read_notes,
)
from turnwise.yaml_files import read_yaml

_LOG = logging.getLogger("turnwise")
_READ_SECONDS = 0.1
"""How long a request or a poll reads episodes."""
_FRESH_SECONDS = 60.0
"""A run whose lock is not visible counts as live if it wrote within this time."""

_DEPTH = 3
"""How many levels below the named folder are searched for runs."""


class NotFound(ConfigError):
    """There is no such run or episode."""


class RunMetrics:
    """The metrics of a run, and what the doctor found in them."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._reader = MetricsReader()
        self._doctor: Doctor | None = None
        self._findings: list[dict[str, Any]] = []
        self._num_examined = 0
        self.problem: str | None = None

    @property
    def steps(self) -> list[dict[str, Any]]:
        return self._reader.lines

    def update(self) -> None:
        """Read the new lines."""
        with self._lock:
            try:
                if self._reader.update(self._folder.metrics_file):  # all are new: it was rewound
                    self._doctor = None
                self.problem = self._reader.problem
            except (FileNotFoundError, ConfigError) as error:
                self._reader, self._doctor = MetricsReader(), None
                self.problem = str(error) if isinstance(error, ConfigError) else None

    def findings(self) -> list[dict[str, Any]]:
        """Return the doctor's findings so far, each with its step; it examines the new steps."""
        with self._lock:
            if self._doctor is None:
                self._doctor = Doctor(settings_if_readable(self._folder))
                self._findings, self._num_examined = [], 0
            for metrics in self.steps[self._num_examined :]:
                self._num_examined += 1
                step = metrics.get("step", self._num_examined)
                for finding in self._doctor.look(metrics):
                    text = f"{finding.text} {finding.because}".rstrip()
                    about = {"step": step, "name": finding.code, "text": text, "fix": finding.fix}
                    self._findings.append(about)
            return list(self._findings)

    def at(self, step: int) -> dict[str, Any]:
        """Return the metrics of a step; empty if there are none."""
        return next((s for s in reversed(self.steps) if s.get("step") == step), {})

    def columns(self, since: int = 0) -> dict[str, Any]:
        """Return each metric as a column, with None where a step has no value.

        `minor` are metrics that say nothing in this run, and are drawn only when asked for.
        """
        with self._lock:
            steps = [s for s in self.steps if s.get("step", 0) > since]
            minor = [] if kl_is_informative(self.steps) else ["kl"]
        names = dict.fromkeys(name for step in steps for name in step if name != "step")
        columns = {name: [step.get(name) for step in steps] for name in names}
        series = {name: [v if is_number(v) else None for v in columns[name]] for name in names}
        return {"steps": [step.get("step") for step in steps], "series": series, "minor": minor}


class ViewedRun:
    """One run, in its current state."""

    def __init__(self, key: str, path: Path) -> None:
        self.key = key
        self.files = RunFiles(path)
        self.folder = self.files.folder
        self.metrics = RunMetrics(self.folder)
        self.episodes = EpisodeList(self.folder.episodes)
        self._episode_files: dict[FileKey, FileStamp] = {}
        """The existing files of episodes; `episodes` may not have them yet."""
        self._failure: str | None = None
        self.updated: float | None = None
        """When the run was last written to, as of the last `refresh`."""
        self.is_live = False
        self._headline: tuple[object, dict[str, Any] | None] | None = None
        self._noting = threading.Lock()
        self._seen: object = None

    # ---- what changed ----

    def refresh(self, seconds: float = _READ_SECONDS, locked: set[int] | None = None) -> bool:
        """Read what is new and return whether anything is. Errors are added to `problems`.

        Episodes are read for so long; the others follow at the next poll.
        `locked` are the locked files of this machine, where they are known.
        """
        try:
            return self._refresh(seconds, locked)
        except Exception as error:
            return self._note_failure(error)

    def open_episodes(self, seconds: float = _READ_SECONDS) -> bool:
        """Read what is new, and from now on the episodes too, which until now were counted."""
        self.episodes.open()
        return self.refresh(seconds)

    def _refresh(self, seconds: float, locked: set[int] | None) -> bool:
        folder = self.folder
        self._episode_files = self.files.episode_files()
        has_read = self.episodes.update(self._episode_files, seconds)
        self.metrics.update()
        paths = (folder.status_file, folder.metrics_file, folder.log_file)
        written = [file_stamp(path) for path in paths]
        self.updated = max((s.changed / 1e9 for s in written if s is not None), default=None)
        self.is_live = False
        if self._status().get("status") == "running":
            lock = file_stamp(folder.path / ".lock")
            locked = locked_inodes() if locked is None else locked
            is_fresh = time.time() - (self.updated or 0.0) < _FRESH_SECONDS
            self.is_live = is_fresh or (lock is not None and lock.inode in locked)
        noted = [file_stamp(folder.path / NOTES_FILE), file_stamp(self._best_file)]
        seen = (written[:2], noted, self._episode_files, self.is_live)
        is_new, self._seen = seen != self._seen, seen
        return is_new or has_read

    # ---- what cannot be read ----

    @property
    def problems(self) -> list[str]:
        """The reasons why some of the run cannot be shown."""
        problems = [self._failure, self.metrics.problem, *list(self.files.problems.values())]
        return [problem for problem in (*problems, self.episodes.problem) if problem]

    def _note_failure(self, error: Exception) -> bool:
        """Record an error that is shown and logged once; return whether it is new."""
        failure = describe(error)
        if failure == self._failure:
            return False
        self._failure = failure
        _LOG.warning("the run %s cannot be read: %s", self.key, failure)
        return True

    # ---- what the page receives ----

    def summary(self) -> dict[str, Any]:
        """Return the run for the list; of one that cannot be read, the name and the reason."""
        status: Mapping[str, Any] = {}
        last: Mapping[str, Any] = {}
        main = best = None
        try:
            status, steps = self._status(), list(self.metrics.steps)
            last = steps[-1] if steps else {}
            evaluation = status.get("evaluation")
            state = len(steps), last, evaluation
            if self._headline is None or self._headline[0] != state:  # there are new steps
                number = headline(steps, evaluation if isinstance(evaluation, str) else None)
                self._headline = state, None if number is None else number.to_dict()
            main, best = self._headline[1], self._best_checkpoint()
        except Exception as error:
            self._note_failure(error)
        return {
            "key": self.key,
            "path": legible_path(self.folder.path),
            "name": self.key.partition("~")[0],
            "environment": str(status.get("environment", "")),
            "status": str(status.get("status", "")),
            "step": last.get("step", status.get("step", 0)),
            "total_steps": status.get("num_steps"),
            "started": self.files.read(self.folder.log_file, first_log_time),
            "updated": self.updated,
            "num_episodes": self.episodes.num_episodes,
            "headline": main,
            "best_checkpoint": best,
            "last": last,
            "is_live": self.is_live,
            "indexed": self.indexed(),
            "notes": self.notes(),
            "problems": self.problems,
        }

    @property
    def _best_file(self) -> Path:
        return self.folder.checkpoints / "best.json"

    def _best_checkpoint(self) -> dict[str, Any] | None:
        """Return which checkpoint is the best and by which metric; None if there is none."""
        mark = self.files.read(self._best_file, lambda file: read_best_mark(file.parent))
        store = CheckpointStore(self.folder.checkpoints)
        return mark.to_dict() if mark is not None and store.path(mark.step).is_dir() else None

    def detail(self) -> dict[str, Any]:
        """Return the run for its own page."""
        return {
            **self.summary(),
            **overview(self.episodes),
            "config": self.config(),
            "changes": self.files.read(self.folder.changes_file, lambda _: self.folder.changes)
            or [],
            "findings": self.metrics.findings(),
            "log_tail": self.files.log_tail(),
        }

    def indexed(self) -> dict[str, int]:
        """Return how many files of episodes were read, of how many."""
        return {"files": self.episodes.num_files, "of": len(self._episode_files)}

    def _status(self) -> dict[str, Any]:
        return self.files.read(self.folder.status_file, read_json_object) or {}

    def config(self) -> dict[str, Any]:
        """Return the settings; empty if they cannot be read. Parsing YAML is slow."""
        return self.files.read(self.folder.config_file, read_yaml) or {}

    def facts(self, name: str) -> dict[str, Any]:
        """Return `identity` or `provenance` of `run.json`; empty if it has none."""
        facts = self._status().get(name)
        return dict(facts) if isinstance(facts, Mapping) else {}

    def notes(self) -> dict[str, Any]:
        """Return the user's tags and note, and whether the run is archived."""
        notes = self.files.read(self.folder.path / NOTES_FILE, read_notes) or NO_NOTES
        return {name: notes[name] for name in NO_NOTES}

    def change_notes(self, changes: Any) -> dict[str, Any]:
        """Save some of the notes, and return all of them."""
        with self._noting:
            change_notes(self.folder.path, changes)
        return self.notes()

    # ---- stored episodes ----

    def step_episodes(self, key: FileKey) -> tuple[list[StoredEpisode], list[Phase]]:
        """Return the episodes of a kind and step, and the phases of their step."""
        path = self._episode_path(key)
        return table_to_episodes(read_table(path)), read_phases(path)

    def episode(self, name: str) -> tuple[FileKey, int, StoredEpisode]:
        """Return the episode with an id such as "train-12-3"."""
        match = re.fullmatch(r"([a-z][a-z-]*)-([0-9]{1,18})-([0-9]{1,9})", name)
        if match is None:
            raise NotFound(f"there is no episode {name[:80]!r}; an id is, for example, train-12-3")
        key, index = (match[1], int(match[2])), int(match[3])
        path = self._episode_path(key)
        try:
            table = read_table(path, row=index)
        except IndexError:
            raise NotFound(f"step {key[1]} has no {key[0]} episode with number {index}") from None
        return key, index, table_to_episodes(table)[0]

    def _episode_path(self, key: FileKey) -> Path:
        if key not in self._episode_files:
            self._episode_files = self.files.episode_files()
        if key not in self._episode_files:
            raise NotFound(f"the run {self.key} has no {key[0]} episodes of step {key[1]}")
        return self.folder.episodes / file_name(*key)

    @property
    def token_texts(self) -> TokenTexts:
        """The texts of tokens, by the tokenizer that the run keeps."""
        path = self.folder.tokenizer_file
        return self.files.read(path, TokenTexts) or TokenTexts(path)


class Library:
    """The runs in some folders; new ones are found while the viewer is open."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = list(folders)
        self._runs: dict[str, ViewedRun] = {}
        """By their keys."""
        self._lock = threading.Lock()

    def find(self) -> bool:
        """Look for runs; return whether there are others than before."""
        paths = {path.resolve() for folder in self.folders for path in _runs_in(folder.resolve())}
        with self._lock:
            known = {run.folder.path: key for key, run in self._runs.items()}
            gone, new = known.keys() - paths, paths - known.keys()
            for path in gone:
                del self._runs[known[path]]
            for path in sorted(new):
                # The folder's name, made unique; a run keeps the key that it got.
                name = re.sub(r"[^\w.+=-]+", "-", path.name, flags=re.ASCII) or "run"
                names = chain([name], (f"{name}~{number}" for number in count(2)))
                key = next(key for key in names if key not in self._runs)
                self._runs[key] = ViewedRun(key, path)
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
            if key not in self._runs:
                raise NotFound(f"there is no run {key[:80]!r} here. GET /api/runs lists them.")
            return self._runs[key]


def _runs_in(folder: Path) -> Iterator[Path]:
    for path, folders, files in os.walk(folder, followlinks=True):
        is_run = any(mark in files for mark in RUN_MARKS)
        if is_run:
            yield Path(path)
        if is_run or len(Path(path).relative_to(folder).parts) == _DEPTH:
            folders.clear()  # `os.walk` goes into those that are left
        folders[:] = [name for name in folders if name[0] != "."]
