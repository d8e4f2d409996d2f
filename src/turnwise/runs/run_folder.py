"""The folder of a run: `config.yaml`, `metrics.jsonl`, `episodes/`, `checkpoints/`, `log.txt`."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from turnwise.bounded_files import parse_json, read_bytes, read_json_object
from turnwise.config import ConfigStore
from turnwise.errors import ConfigError
from turnwise.runs.disk_errors import explained
from turnwise.runs.resume_settings import Change, changes_between, refusals
from turnwise.runs.run_log import logged_to
from turnwise.whole_files import is_draft, write_whole

Resume: TypeAlias = Literal["auto", "always", "never"]
"""`auto`: go on with a run of the same settings that did not end; `always`: there must be one;
`never`: a new folder."""

_LOG = logging.getLogger("turnwise")
_MOST_RUNS = 10_000
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
    def evaluated_on(self) -> str | None:
        """What its evaluations are on, `held-out seeds` or `training rows`; None: not recorded."""
        try:
            found = self.status.get("evaluation")
        except ConfigError:
            return None
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

    def settings(self) -> ConfigStore | None:
        """Those that the run has; None if it was killed before it wrote them."""
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


def choose_run_folder(
    config: ConfigStore,
    environment: str,
    resume: Resume = "auto",
    *,
    identity: Mapping[str, str] | None = None,
    allow_changes: bool = True,
) -> tuple[RunFolder, bool]:
    """The folder for this run, and whether a run in it is to be resumed. Nothing is made yet.

    A run that is named may be resumed with other settings, as far as `resume_settings` allows it
    and unless `allow_changes` is False. One that is found by its environment has the same ones.
    `identity` are hashes of the environment, reward, tools and dataset: where they are others than
    the run has, it is resumed only with `always`.
    """
    base = Path(config.checkpoint.output_dir).expanduser()
    name = config.checkpoint.run_name
    if name is not None:
        folder = RunFolder(base / _checked(name))
        found = _named(folder, config, environment, resume, allow_changes)
        changed = changed_code(folder, identity) if found[1] else []
        if changed and resume == "auto":
            raise ConfigError(
                f"{' and '.join(changed)} changed since the run in {folder.path} began. To "
                "continue it in spite of that, say resume=True (or --resume); for a new run, "
                "choose another checkpoint.run_name."
            )
        return found
    stem = _slug(environment)
    for number in range(1, _MOST_RUNS):
        folder = RunFolder(base / (stem if number == 1 else f"{stem}-{number}"))
        if not folder.exists:
            break
        if resume != "never" and _can_resume(folder, config, environment):
            changed = changed_code(folder, identity)
            if not changed or resume == "always":
                return folder, True
            _LOG.warning(
                "%s changed since the run in %s began: a new run begins beside it. To continue the "
                "old one in spite of that, say resume=True (or --resume).",
                " and ".join(changed),
                folder.path,
            )
    if resume == "always":
        raise ConfigError(
            f"there is no run to resume in {base}: none with these settings that did not end. "
            "Name it with checkpoint.run_name, or leave out --resume to begin a new one."
        )
    return folder, False


def changed_code(folder: RunFolder, identity: Mapping[str, str] | None) -> list[str]:
    """The components of a run that do something else now: `the reward`, `the dataset` ..."""
    before = folder.status.get("identity")
    if identity is None or not isinstance(before, dict):  # of an older version
        return []
    return [
        f"the {name.replace('_', ' ', 1) if name.startswith('system_prompt') else name}"
        for name in dict.fromkeys([*before, *identity])
        if before.get(name) != identity.get(name)
    ]


def _named(
    folder: RunFolder,
    config: ConfigStore,
    environment: str,
    resume: Resume,
    allow_changes: bool,
) -> tuple[RunFolder, bool]:
    if not folder.exists:
        if resume == "always":
            raise ConfigError(f"there is no run to resume in {folder.path}")
        return folder, False
    if not folder.status_file.exists() and not folder.has_checkpoints:
        raise ConfigError(
            f"{folder.path} exists and is not a run. Choose another checkpoint.run_name."
        )
    if resume == "never":
        raise ConfigError(
            f"there is a run in {folder.path}. Choose another checkpoint.run_name, or remove it."
        )
    status, before = _readable_status(folder, environment), folder.settings()
    refused = [] if before is None else refusals(before, config)
    if before is not None and not allow_changes:
        changes = changes_between(before, config)
        refused = [str(change) for change in changes if change.makes_another_run]
    if not _is_same(status.get("environment"), environment):
        refused.insert(0, f"the environment was {status.get('environment')}")
    if refused:
        raise ConfigError(
            f"the run in {folder.path} has other settings: {'; '.join(refused[:5])}. "
            "Resume it with its own config.yaml, or choose another checkpoint.run_name."
        )
    return folder, True


def _can_resume(folder: RunFolder, config: ConfigStore, environment: str) -> bool:
    if not folder.status_file.exists() and not folder.has_checkpoints:
        return False  # somebody else's folder
    status = _readable_status(folder, environment)
    if not _is_same(status.get("environment"), environment) or status.get("status") == "finished":
        return False
    try:
        before = folder.settings()
    except ConfigError as error:
        _LOG.warning("the run in %s is not resumed: %s", folder.path, error)
        return False
    changes = [] if before is None else changes_between(before, config)
    return not any(change.makes_another_run for change in changes) and not _is_held(folder)


def _is_same(before: str | None, environment: str) -> bool:
    """Whether two names can mean one environment: a class, or where it is imported from.

    Whether its code is the same is seen by its hash.
    """
    return before is not None and before.rpartition(":")[2] == environment.rpartition(":")[2]


def _readable_status(folder: RunFolder, environment: str) -> dict[str, Any]:
    """The status, or an error that says how to get one: checkpoints are not passed over because
    of a damaged file beside them."""
    try:
        status = folder.status
        if status or not folder.has_checkpoints:
            return status
        problem = f"{folder.status_file} is missing"
    except ConfigError as error:
        if not folder.has_checkpoints:
            raise
        problem = str(error)
    content = json.dumps({"status": "interrupted", "environment": environment})
    raise ConfigError(
        f"{problem}, and there are checkpoints in {folder.path}. To resume this run of "
        f"{environment}, write the file anew: "
        f"echo {shlex.quote(content)} > {shlex.quote(str(folder.status_file))}. To begin a new "
        "run, take --fresh (resume='never'), or another checkpoint.run_name."
    )


def _is_held(folder: RunFolder) -> bool:
    try:
        with folder.held():
            return False
    except ConfigError:
        return True


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
