"""The folder of a run: `config.yaml`, `metrics.jsonl`, `episodes/`, `checkpoints/`, `log.txt`."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from turnwise.config import ConfigStore
from turnwise.errors import ConfigError
from turnwise.json_files import parse_json, read_bytes, read_json_object
from turnwise.legible import LegibleFormatter
from turnwise.runs.metrics_log import MetricsLog
from turnwise.whole_files import explained, is_draft, write_whole

if TYPE_CHECKING:
    from turnwise.runs.choose_folder import Change

Resume: TypeAlias = Literal["auto", "always", "never"]
"""`auto` resumes an unfinished run of the same settings, if any; `always` requires one; `never`
starts a new folder."""

RESTORE = (
    "Without this file the run cannot be resumed: restore it, or begin another run "
    "(checkpoint.run_name)."
)
RUN_MARKS = ("run.json", "metrics.jsonl")
"""Either file makes a folder a run; a copy of a run may lack the first."""
_BEFORE_STATUS = {".lock", "log.txt"}
"""Files that exist before a run has a status."""


def is_run(folder: Path) -> bool:
    """Return whether a folder is one of a run, which may be a copy of some of its files."""
    is_marked = any((folder / mark).is_file() for mark in RUN_MARKS)
    return is_marked or RunFolder(folder).has_checkpoints


def is_checkpoint(folder: Path) -> bool:
    """Return whether a folder is a checkpoint of turnwise."""
    return (folder / "state.json").is_file()


def run_containing(folder: Path) -> Path:
    """Return the run that a checkpoint belongs to; a run, or a checkpoint by itself, as it is."""
    if not is_checkpoint(folder):
        return folder
    parents = folder.parents if len(folder.parents) > 2 else folder.absolute().parents
    return next((parent for parent in parents[:2] if is_run(parent)), folder)


class RunFolder:
    """The paths of a run's files, and reading and writing its status."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.yaml"
        self.status_file = path / "run.json"
        self.metrics_file = path / "metrics.jsonl"
        self.changes_file = path / "changes.jsonl"
        """Settings that were changed when the run was resumed; most runs have none."""
        self.tokenizer_file = path / "tokenizer.json"
        self.episodes = path / "episodes"
        self.checkpoints = path / "checkpoints"
        self.log_file = path / "log.txt"

    @property
    def status(self) -> dict[str, Any]:
        """The content of `run.json`, empty if there is none; `ConfigError` if it cannot be read."""
        try:
            return read_json_object(self.status_file)
        except FileNotFoundError:
            return {}
        except ConfigError as error:
            raise ConfigError(f"{error}. {RESTORE}") from error

    @property
    def facts(self) -> dict[str, Any]:
        """The same as `status`, but empty if `run.json` cannot be read."""
        try:
            return self.status
        except (ConfigError, OSError):
            return {}

    @property
    def evaluated_on(self) -> str | None:
        """What evaluations are on: `held-out seeds`, `training rows` ...; None: not recorded."""
        recorded = self.facts.get("evaluation")
        return recorded if isinstance(recorded, str) else None

    def write_status(self, **status: Any) -> None:
        """Replace `run.json`; a reader sees the old status or the new one, never half of one."""
        self.write(self.status_file, f"{json.dumps(status, indent=1)}\n".encode())

    def write(self, file: Path, content: bytes) -> None:
        """Write a file of the folder whole; an error of the disk names the fix."""
        with explained(file):
            write_whole(file, content)

    def write_changes(self, step: int, changes: Sequence[Change]) -> None:
        """Record the settings that differ from this step on.

        Records of later steps are removed, since the run was rewound to this one. Those of the same
        step stay: a run may be resumed twice without a step in between.
        """
        kept = [entry for entry in self.changes if entry["step"] <= step]
        settings = {change.name: [change.before, change.now] for change in changes}
        if settings:
            kept.append({"step": step, "settings": settings})
        if kept or self.changes_file.exists():
            lines = "".join(json.dumps(entry, default=str) + "\n" for entry in kept)
            self.write(self.changes_file, lines.encode())

    @property
    def changes(self) -> list[dict[str, Any]]:
        """The settings that were changed at a resume, as
        {"step": 12, "settings": {"training.learning_rate": [0.0001, 0.00001]}}."""
        try:
            lines = read_bytes(self.changes_file).splitlines()
        except FileNotFoundError:
            return []
        return [parse_json(line, str(self.changes_file)) for line in lines]

    @property
    def exists(self) -> bool:
        """Whether the folder has more than the files of a run that was killed as it started."""
        return self.path.exists() and any(
            entry.name not in _BEFORE_STATUS and not is_draft(entry.name)
            for entry in self.path.iterdir()
        )

    @property
    def has_checkpoints(self) -> bool:
        """Whether there are checkpoints of turnwise or of VERL."""
        folders = (self.checkpoints.glob("step-*"), (self.path / "verl").glob("global_step_*"))
        return any(next(paths, None) is not None for paths in folders)

    def read_metrics(self) -> list[dict[str, float]]:
        """Return the numeric metrics of every step; empty if there are none."""
        lines = MetricsLog(self.metrics_file).read()
        return [{k: x for k, x in line.items() if isinstance(x, int | float)} for line in lines]

    def settings(self) -> ConfigStore | None:
        """Return the run's settings; None if it was killed before it wrote them."""
        return ConfigStore.load(self.config_file) if self.config_file.exists() else None

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock for training in this folder, which is freed if the process is killed."""
        with open(self.path / ".lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"another process is training in {self.path}. Wait for it, or choose another "
                    "checkpoint.run_name."
                ) from None
            yield

    @contextlib.contextmanager
    def logged(self, level: str) -> Iterator[None]:
        """Also write what turnwise logs at this level to `log.txt`, inside of the context.

        The logger's level must be that of the file. The user's own handlers still get only the
        records that they would get without the run.
        """
        logger = logging.getLogger("turnwise")
        before, level_of_others = logger.level, logger.getEffectiveLevel()
        handler = logging.FileHandler(self.log_file, encoding="utf-8")
        handler.setFormatter(LegibleFormatter("%(asctime)s %(levelname)s %(message)s"))

        def is_for_others(record: logging.LogRecord) -> bool:
            is_ours = record.name.partition(".")[0] == "turnwise"
            return not is_ours or record.levelno >= level_of_others

        others = [*logging.getLogger().handlers, *logger.handlers]
        for other in others:
            other.addFilter(is_for_others)
        logger.addHandler(handler)
        logger.setLevel(level.upper())
        try:
            yield
        finally:
            logger.setLevel(before)
            logger.removeHandler(handler)
            for other in others:
                other.removeFilter(is_for_others)
            handler.close()
