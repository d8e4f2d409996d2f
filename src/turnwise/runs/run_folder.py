"""The folder of a run: `config.yaml`, `metrics.jsonl`, `episodes/`, `checkpoints/`, `log.txt`."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from turnwise.config import ConfigStore
from turnwise.errors import ConfigError
from turnwise.runs.disk_errors import explained

Resume: TypeAlias = Literal["auto", "always", "never"]
"""`auto`: go on with a run of the same settings that did not end; `always`: there must be one;
`never`: a new folder."""

# Settings that may differ between the two parts of a run that was resumed.
_FREE = {"training.num_epochs"}
_FREE_SECTIONS = {"checkpoint", "logging", "ray"}
_MOST_RUNS = 10_000
_BEGINNING = {".lock", "log.txt", ".run.json"}
"""Files that are there before a run has a status."""


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
        """What the run last said of itself; empty if it has not begun."""
        try:
            found: dict[str, Any] = json.loads(self.status_file.read_text())
        except (OSError, ValueError):
            return {}
        return found

    def write_status(self, **status: Any) -> None:
        """Say how the run stands; whoever reads it sees the old or the new, never half of one."""
        temporary = self.path / ".run.json"
        with explained(self.status_file):
            temporary.write_text(json.dumps(status, indent=1) + "\n")
            os.replace(temporary, self.status_file)

    @property
    def exists(self) -> bool:
        """Whether there is something in it; not what a run left that was killed as it began."""
        return self.path.exists() and any(p.name not in _BEGINNING for p in self.path.iterdir())

    def differences(self, config: ConfigStore) -> list[str]:
        """Settings that decide what a run does and are others than the run began with."""
        if not self.config_file.exists():  # killed before it had done anything
            return []
        try:
            before = _settings(ConfigStore.load(self.config_file))
        except ConfigError as error:
            return [str(error)]
        now = _settings(config)
        return [
            f"{name} was {before.get(name)!r} and is {value!r}"
            for name, value in now.items()
            if before.get(name) != value
        ]

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

    @contextlib.contextmanager
    def logged(self, level: str) -> Iterator[None]:
        """What turnwise logs goes into `log.txt` too."""
        logger = logging.getLogger("turnwise")
        handler = logging.FileHandler(self.log_file, encoding="utf-8")
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        before = logger.level
        logger.addHandler(handler)
        logger.setLevel(level.upper())
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(before)
            handler.close()


def choose_run_folder(
    config: ConfigStore, environment: str, resume: Resume = "auto"
) -> tuple[RunFolder, bool]:
    """The folder for this run, and whether a run in it is to be resumed. Nothing is made yet."""
    base = Path(config.checkpoint.output_dir).expanduser()
    name = config.checkpoint.run_name
    if name is not None:
        return _named(RunFolder(base / _checked(name)), config, environment, resume)
    stem = _slug(environment)
    for number in range(1, _MOST_RUNS):
        folder = RunFolder(base / (stem if number == 1 else f"{stem}-{number}"))
        if not folder.exists:
            break
        if resume != "never" and _can_resume(folder, config, environment):
            return folder, True
    if resume == "always":
        raise ConfigError(
            f"there is no run to resume in {base}: none with these settings that did not end. "
            "Name it with checkpoint.run_name, or leave out --resume to begin a new one."
        )
    return folder, False


def _named(
    folder: RunFolder, config: ConfigStore, environment: str, resume: Resume
) -> tuple[RunFolder, bool]:
    if not folder.exists:
        if resume == "always":
            raise ConfigError(f"there is no run to resume in {folder.path}")
        return folder, False
    if not folder.status_file.exists():
        raise ConfigError(
            f"{folder.path} exists and is not a run. Choose another checkpoint.run_name."
        )
    if resume == "never":
        raise ConfigError(
            f"there is a run in {folder.path}. Choose another checkpoint.run_name, or remove it."
        )
    different = folder.differences(config)
    if folder.status.get("environment") != environment:
        different.insert(0, f"the environment was {folder.status.get('environment')}")
    if different:
        raise ConfigError(
            f"the run in {folder.path} has other settings: {'; '.join(different[:5])}. "
            "Resume it with its own config.yaml, or choose another checkpoint.run_name."
        )
    return folder, True


def _can_resume(folder: RunFolder, config: ConfigStore, environment: str) -> bool:
    status = folder.status
    return (
        status.get("environment") == environment
        and status.get("status") != "finished"
        and not folder.differences(config)
        and not _is_held(folder)
    )


def _is_held(folder: RunFolder) -> bool:
    try:
        with folder.held():
            return False
    except ConfigError:
        return True


def _settings(config: ConfigStore) -> Mapping[str, Any]:
    return {
        name: value
        for name, value in config.settings()
        if name.partition(".")[0] not in _FREE_SECTIONS and name not in _FREE
    }


def _checked(name: str) -> str:
    if not re.fullmatch(r"[\w.][\w.+=-]*", name) or name in (".", ".."):
        raise ConfigError(
            f"checkpoint.run_name got {name!r}, expected a folder's name of letters, digits, "
            "dots and dashes"
        )
    return name


def _slug(environment: str) -> str:
    """A folder's name from an environment's.

    >>> _slug("my_games/maze.py:TextMaze"), _slug("gym:CartPole-v1")
    ('TextMaze', 'gym-CartPole-v1')
    """
    if ".py:" in environment:
        environment = environment.rpartition(":")[2]
    return re.sub(r"[^\w.-]+", "-", environment).strip("-.") or "run"
