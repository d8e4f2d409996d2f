"""The folder of a run: `config.yaml`, `metrics.jsonl`, `episodes/`, `checkpoints/`, `log.txt`."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, TypeAlias

from turnwise.bounded_files import parse_json, read_bytes, read_json_object
from turnwise.config import ConfigStore
from turnwise.errors import CheckpointError, ConfigError
from turnwise.legible import LegibleFormatter
from turnwise.runs.metrics_log import MetricsLog, numbers_of
from turnwise.whole_files import explained, is_draft, write_whole

if TYPE_CHECKING:
    from turnwise.runs.resume_settings import Change

Resume: TypeAlias = Literal["auto", "always", "never"]
"""`auto` resumes an unfinished run of the same settings, if any; `always` requires one; `never`
starts a new folder."""

_BEFORE_STATUS = {".lock", "log.txt"}
"""Files that exist before a run has a status."""
_MAX_STATUS_BYTES = 2**20
_STATUS_TYPES = {"status": str, "environment": str, "step": int, "num_steps": int}


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
        self._lock: IO[str] | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunFolder) and other.path == self.path

    def __hash__(self) -> int:
        return hash(self.path)

    @property
    def status(self) -> dict[str, Any]:
        """The content of `run.json`, empty if there is none; `ConfigError` if it cannot be read."""
        try:
            status = read_json_object(self.status_file, _MAX_STATUS_BYTES)
        except FileNotFoundError:
            return {}
        for name, kind in _STATUS_TYPES.items():
            if name in status and not isinstance(status[name], kind):
                expected = "text" if kind is str else "a whole number"
                raise ConfigError(
                    f"{self.status_file}: {name} got {status[name]!r:.80}, expected {expected}"
                )
        return status

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
        with explained(self.status_file):
            write_whole(self.status_file, f"{json.dumps(status, indent=1)}\n".encode())

    def overwrite_status(self, status: str) -> None:
        """Change the status alone, within the bytes that `run.json` has.

        On a disk without room that is all that can be written; a long text is cut.
        """
        with contextlib.suppress(OSError, ConfigError):
            facts, size = self.status, self.status_file.stat().st_size
            while len(content := json.dumps({**facts, "status": status})) > size and status:
                status = status[:-1]
            if len(content) <= size:
                with open(self.status_file, "r+b") as file:
                    file.write(content.ljust(size).encode())

    def write_changes(self, step: int, changes: Sequence[Change], now: ConfigStore) -> None:
        """Record the settings that differ from this step on; `now` are those of the run.

        Records of later steps are removed, since the run was rewound to this one. A record of the
        same step stays: a run may be resumed twice without a step in between.
        """
        entries, values = self.changes, dict(now.settings())
        kept = [entry for entry in entries if entry["step"] < step]
        settings = {change.name: [change.before, change.now] for change in changes}
        for entry in entries:
            if entry["step"] == step:
                first = {name: pair[0] for name, pair in entry["settings"].items()}
                settings |= {name: [first[name], values[name]] for name in first if name in values}
        settings = {name: pair for name, pair in settings.items() if not _are_equal(*pair)}
        if settings:
            kept.append({"step": step, "settings": settings})
        if kept or self.changes_file.exists():
            lines = "".join(json.dumps(entry, default=str) + "\n" for entry in kept)
            with explained(self.changes_file):
                write_whole(self.changes_file, lines.encode())

    @property
    def changes(self) -> list[dict[str, Any]]:
        """The settings that were changed at a resume, as
        {"step": 12, "settings": {"training.learning_rate": [0.0001, 0.00001]}}."""
        try:
            lines = read_bytes(self.changes_file, _MAX_STATUS_BYTES).splitlines()
        except FileNotFoundError:
            return []
        entries = []
        for number, line in enumerate(lines, 1):
            where = f"{self.changes_file}, line {number}"
            entry = parse_json(line, where)
            is_one = isinstance(entry, dict) and isinstance(entry.get("settings"), dict)
            if not is_one or not isinstance(entry.get("step"), int):
                raise ConfigError(
                    f"{where}: got {entry!r:.80}, expected an object such as "
                    '{"step": 12, "settings": {"training.lam": [0.95, 0.9]}}'
                )
            entries.append(entry)
        return entries

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
        return [numbers_of(line) for line in MetricsLog(self.metrics_file).read()]

    def settings(self) -> ConfigStore | None:
        """Return the run's settings; None if it was killed before it wrote them."""
        return ConfigStore.load(self.config_file) if self.config_file.exists() else None

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock for training in this folder, which is freed if the process is killed."""
        self._take_lock()
        try:
            yield
        finally:
            if self._lock is not None:
                self._lock.close()
            self._lock = None

    def _take_lock(self) -> None:
        lock = open(self.path / ".lock", "w")  # noqa: SIM115 - held until the end of `held`
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise ConfigError(
                f"another process is training in {self.path}. Wait for it, or give this run "
                "another name: checkpoint.run_name"
            ) from None
        self._lock = lock

    def check_lock(self) -> None:
        """Raise if another process may have begun to train here, since `.lock` was deleted.

        A lock that is only missing is taken again.
        """
        if self._lock is None:
            return
        try:
            inode = os.stat(self.path / ".lock").st_ino
        except FileNotFoundError:
            self._lock.close()
            self._take_lock()
            return
        if inode != os.fstat(self._lock.fileno()).st_ino:
            raise CheckpointError(
                f"{self.path / '.lock'} was deleted while this process trained there, and another "
                "process has made a new one to train in the same folder. This process ends and "
                "writes nothing more. Do not delete the file while a run is training."
            )

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


def _are_equal(before: Any, now: Any) -> bool:
    """Whether two values are the same in JSON, where one of them may come from."""
    return json.dumps(before, default=str) == json.dumps(now, default=str)
