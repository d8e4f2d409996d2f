"""The folder of a run: `config.yaml`, `metrics.jsonl`, `episodes/`, `checkpoints/`, `log.txt`."""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from turnwise.bounded_files import parse_json, read_bytes, read_json_object
from turnwise.config import ConfigStore
from turnwise.errors import ConfigError
from turnwise.runs.disk_errors import explained
from turnwise.runs.metrics_log import MetricsLog, numbers_of
from turnwise.runs.resume_settings import Change
from turnwise.runs.run_log import logged_to
from turnwise.whole_files import is_draft, write_whole

Resume: TypeAlias = Literal["auto", "always", "never"]
"""`auto`: go on with a run of the same settings that did not end; `always`: there must be one;
`never`: a new folder."""

_BEGINNING = {".lock", "log.txt", ".run.json"}
"""Files that are there before a run has a status, besides drafts; the last is of older versions."""
_MAX_STATUS_BYTES = 2**20
_STATUS_TYPES = {"status": str, "environment": str, "step": int, "num_steps": int}


@dataclass(frozen=True)
class RunFolder:
    """Where each thing of a run is."""

    path: Path

    @property
    def config_file(self) -> Path:
        return self.path / "config.yaml"

    @property
    def status_file(self) -> Path:
        return self.path / "run.json"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def changes_file(self) -> Path:
        """Settings that were changed when the run was resumed; most runs have none."""
        return self.path / "changes.jsonl"

    @property
    def tokenizer_file(self) -> Path:
        return self.path / "tokenizer.json"

    @property
    def episodes(self) -> Path:
        return self.path / "episodes"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def log_file(self) -> Path:
        return self.path / "log.txt"

    @property
    def status(self) -> dict[str, Any]:
        """What the run last reported of itself; empty if it has not begun.

        A `run.json` that cannot be read is a `ConfigError`.
        """
        try:
            found = read_json_object(self.status_file, _MAX_STATUS_BYTES)
        except FileNotFoundError:
            return {}
        for name, kind in _STATUS_TYPES.items():
            if name in found and not isinstance(found[name], kind):
                expected = "text" if kind is str else "a whole number"
                raise ConfigError(
                    f"{self.status_file}: {name} got {found[name]!r:.80}, expected {expected}"
                )
        return found

    @property
    def facts(self) -> dict[str, Any]:
        """The same as `status`, and empty where `run.json` cannot be read."""
        try:
            return self.status
        except (ConfigError, OSError):
            return {}

    @property
    def evaluated_on(self) -> str | None:
        """What its evaluations are on, `held-out seeds` or `training rows`; None: not recorded."""
        found = self.facts.get("evaluation")
        return found if isinstance(found, str) else None

    def write_status(self, **status: Any) -> None:
        """Report how the run stands; a reader sees the old status or the new, never half of one."""
        with explained(self.status_file):
            write_whole(self.status_file, f"{json.dumps(status, indent=1)}\n".encode())

    def write_changes(self, step: int, changes: Sequence[Change]) -> None:
        """Record the settings that are others from this step on.

        What was recorded for this step or later ones is replaced: the run has gone back to it.
        """
        kept = [entry for entry in self.changes if entry["step"] < step]
        if changes:
            settings = {change.name: [change.before, change.now] for change in changes}
            kept.append({"step": step, "settings": settings})
        if kept or self.changes_file.exists():
            lines = "".join(json.dumps(entry, default=str) + "\n" for entry in kept)
            with explained(self.changes_file):
                write_whole(self.changes_file, lines.encode())

    @property
    def changes(self) -> list[dict[str, Any]]:
        """The settings that were changed, as
        {"step": 12, "settings": {"training.learning_rate": [0.0001, 0.00001]}}."""
        try:
            lines = read_bytes(self.changes_file, _MAX_STATUS_BYTES).splitlines()
        except FileNotFoundError:
            return []
        entries = [
            parse_json(line, f"{self.changes_file}, line {number}")
            for number, line in enumerate(lines, 1)
        ]
        for number, entry in enumerate(entries, 1):
            is_one = isinstance(entry, dict) and isinstance(entry.get("settings"), dict)
            if not is_one or not isinstance(entry.get("step"), int):
                raise ConfigError(
                    f"{self.changes_file}, line {number}: got {entry!r:.80}, expected an object "
                    'such as {"step": 12, "settings": {"training.lam": [0.95, 0.9]}}'
                )
        return entries

    @property
    def exists(self) -> bool:
        """Whether there is something in it; not what a run left that was killed as it began."""
        return self.path.exists() and any(
            entry.name not in _BEGINNING and not is_draft(entry.name)
            for entry in self.path.iterdir()
        )

    @property
    def has_checkpoints(self) -> bool:
        """Whether there is something to resume from, of turnwise or of VERL."""
        found = (self.checkpoints.glob("step-*"), (self.path / "verl").glob("global_step_*"))
        return any(next(paths, None) is not None for paths in found)

    def read_metrics(self) -> list[dict[str, float]]:
        """Return the numeric metrics of every step; empty if there are none."""
        return [numbers_of(line) for line in MetricsLog(self.metrics_file).read()]

    def settings(self) -> ConfigStore | None:
        """Return the run's settings; None if it was killed before it wrote them."""
        return ConfigStore.load(self.config_file) if self.config_file.exists() else None

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Nobody else may train in it meanwhile; freed even when the process is killed."""
        with open(self.path / ".lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"another process is training in {self.path}. Wait for it, or give this run "
                    "a name of its own: checkpoint.run_name"
                ) from None
            yield

    def logged(self, level: str) -> AbstractContextManager[None]:
        """What turnwise logs goes into `log.txt` too."""
        return logged_to(self.log_file, level)
