"""Checkpoints: folders that are saved whole, and opened only if all of their files are intact.

`manifest.json` has the size and sha256 of each file. Nothing here knows models: callers write the
files.
"""

import hashlib
import json
import logging
import math
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from turnwise.errors import CheckpointError, ConfigError
from turnwise.json_files import read_json_object
from turnwise.whole_files import (
    discard,
    explained,
    remove_abandoned,
    restore,
    write_folder,
    write_whole,
)

MANIFEST = "manifest.json"
_FORMAT = 1
_LOG = logging.getLogger("turnwise")
_STEP = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint folder."""

    path: Path
    step: int
    files: dict[str, str]
    """The sha256 of each file when it was saved, by its name: `weights.safetensors`."""

    def file(self, name: str) -> Path:
        """Return the path of a file of the checkpoint."""
        if name not in self.files:
            raise CheckpointError(
                f"the checkpoint {self.path} has no file {name!r}; it has {', '.join(self.files)}"
            )
        if not self.path.is_dir():
            raise CheckpointError(
                f"the checkpoint {self.path} was removed while it was read: its run goes on, and "
                "keeps its newest (checkpoint.keep_last_n) and its best. Run the command again."
            )
        return self.path / name


# ---- one checkpoint ----


def save_checkpoint_to(
    path: str | os.PathLike[str], write: Callable[[Path], None], step: int
) -> Checkpoint:
    """Save to a path of the user's choice; it may replace a checkpoint, but nothing else."""
    path = Path(path).expanduser().resolve()

    def check() -> None:
        if not path.exists() or (path.is_dir() and not any(path.iterdir())):
            return
        try:
            odd = _names(path) - {MANIFEST, *read_manifest(path).files}
        except CheckpointError:
            odd = {path.name}
        if odd:
            raise CheckpointError(
                f"{path} is not a checkpoint, or has other files too ({min(odd)}), and is not "
                "overwritten. Save to a new or empty folder."
            )

    return _save(path, write, step, check)


def _save(
    path: Path, write: Callable[[Path], None], step: int, check: Callable[[], None] = lambda: None
) -> Checkpoint:
    def fill(draft: Path) -> None:
        write(draft)
        write_manifest(draft, step)

    with explained(path):
        write_folder(path, fill, check)
    return read_manifest(path)


def write_manifest(folder: Path, step: int) -> None:
    """Write the manifest of the files in a folder."""
    files = {
        name: {"size": (folder / name).stat().st_size, "sha256": _digest(folder / name)}
        for name in sorted(_names(folder))
    }
    content = {"format": _FORMAT, "step": step, "files": files}
    (folder / MANIFEST).write_bytes(json.dumps(content, indent=2, allow_nan=False).encode())


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Return the checkpoint in a folder, after verifying all of its files."""
    path = Path(path).expanduser().resolve()
    restore(path)
    checkpoint = read_manifest(path)
    saved = checkpoint.files
    try:
        names = _names(path) - {MANIFEST}
        problems = [f"{name} was not there when it was saved" for name in names - saved.keys()]
        problems += [f"{name} is missing" for name in saved.keys() - names]
        if not problems:
            changed = [name for name in saved if _digest(path / name) != saved[name]]
            problems = [f"{name} was changed or cut since it was saved" for name in changed]
    except OSError as error:  # a bad disk, or the run has pruned it in the meantime
        raise CheckpointError(f"cannot use the checkpoint {path}: {error}") from error
    if problems:
        raise CheckpointError(f"cannot use the checkpoint {path}: {min(problems)}")
    return checkpoint


def read_manifest(path: Path) -> Checkpoint:
    """Return a checkpoint without comparing it with its files."""
    try:
        content = _read_format(path / MANIFEST)
        files = {name: str(facts["sha256"]) for name, facts in content["files"].items()}
        return Checkpoint(path, int(content["step"]), files)
    except FileNotFoundError:
        inner = [*path.glob(f"step-*/{MANIFEST}"), *path.glob(f"checkpoints/step-*/{MANIFEST}")]
        hint = f". Did you mean {max(inner).parent}?" if inner else ""
        kind = f"it has no {MANIFEST}" if path.is_dir() else "there is no such folder"
        raise CheckpointError(f"{path} is not a checkpoint: {kind}{hint}") from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"cannot use the checkpoint {path}: {MANIFEST} is damaged: {error}"
        ) from error


def _read_format(path: Path) -> dict[str, Any]:
    content = read_json_object(path)
    number = content.get("format")
    if number != _FORMAT:
        raise ConfigError(f"{path} has format {number!r}, and this turnwise reads {_FORMAT}")
    return content


def _names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ---- the best one ----


@dataclass(frozen=True)
class BestMark:
    """The step of the best checkpoint, and its metric."""

    step: int
    metric: str
    value: float
    low: float | None = None
    high: float | None = None
    """The 95 % interval of the value, if known."""
    num_episodes: int | None = None
    """The number of episodes that were averaged, if known."""

    @property
    def about(self) -> str:
        """The metric, its value and its interval.

        >>> BestMark(4, "eval/greedy/reward", 0.5, 0.25, 0.75, 16).about
        'the best by eval/greedy/reward: 0.5 (0.25 to 0.75, 16 episodes)'
        """
        known = []
        if self.low is not None:
            known.append(f"{self.low:.4g} to {self.high:.4g}")
        if self.num_episodes is not None:
            known.append(f"{self.num_episodes:,} episodes")
        more = f" ({', '.join(known)})" if known else ""
        return f"the best by {self.metric}: {self.value:.4g}{more}"

    def __str__(self) -> str:
        return f"step {self.step:,}, {self.about}"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and the formatted texts."""
        return {**asdict(self), "about": self.about, "text": str(self)}


def read_best_mark(folder: Path) -> BestMark | None:
    """Return the content of `best.json` in a folder of checkpoints; None if there is none.

    The checkpoint itself may have been removed.
    """
    path = folder / "best.json"
    try:
        content = _read_format(path)
        mark: dict[str, Any] = {one.name: content.get(one.name) for one in fields(BestMark)}
        if not isinstance(mark["step"], int):
            raise ConfigError(f"{path} is damaged: it names no step")
        return BestMark(**mark)
    except FileNotFoundError:
        return None


# ---- all of a run ----


class CheckpointStore:
    """The checkpoints of a run: `step-00000012` and so on in one folder, and `best.json`.

    One process writes, and others may read at the same time.
    """

    def __init__(self, folder: str | os.PathLike[str], keep_last_n: int = 3) -> None:
        self.folder = Path(folder).expanduser().resolve()
        self.keep_last_n = keep_last_n

    def save(self, step: int, write: Callable[[Path], None]) -> Checkpoint:
        """Save the files that `write` creates in a folder, then remove old checkpoints."""
        remove_abandoned(self.folder)
        saved = _save(self.path(step), write, step)
        self._prune(step)
        return saved

    def list(self) -> list[Checkpoint]:
        """Return the checkpoints that have a valid manifest, by step; files are not verified."""
        checkpoints = []
        for path in self._folders().values():
            with suppress(CheckpointError):
                checkpoints.append(read_manifest(path))
        return checkpoints

    def newest(self) -> Checkpoint | None:
        """Return the newest intact checkpoint; damaged ones are skipped with a warning."""
        damages: list[str] = []
        for step, path in reversed(self._folders().items()):
            try:
                checkpoint = open_checkpoint(path)
                if checkpoint.step != step:
                    raise CheckpointError(f"the checkpoint {path} is of step {checkpoint.step}")
            except CheckpointError as error:
                if not path.exists():
                    return self.newest()  # the run has pruned it in the meantime
                damages.append(str(error))
                continue
            for damage in damages:
                _LOG.warning("%s. Using %s instead.", damage, checkpoint.path.name)
            return checkpoint
        if damages:
            raise CheckpointError(
                f"none of the checkpoints in {self.folder} is intact:\n" + "\n".join(damages)
            )
        return None

    def mark_best(
        self,
        checkpoint: Checkpoint,
        metric: str,
        value: float,
        interval: tuple[float, float] | None = None,
        num_episodes: int | None = None,
    ) -> None:
        """Mark a checkpoint as the best, which is never pruned."""
        if not math.isfinite(value):
            raise CheckpointError(f"the best {metric} got {value}, expected a finite number")
        low, high = interval or (None, None)
        mark = BestMark(checkpoint.step, metric, float(value), low, high, num_episodes)
        path = self.folder / "best.json"
        with explained(path):
            write_whole(path, json.dumps({"format": _FORMAT, **asdict(mark)}, indent=2).encode())

    @property
    def best(self) -> BestMark | None:
        """The mark of the best checkpoint; None if none is marked or it was removed."""
        try:
            mark = read_best_mark(self.folder)
        except ConfigError as error:
            _LOG.warning("which checkpoint in %s is best is not known: %s", self.folder, error)
            return None
        return mark if mark is not None and self.path(mark.step).is_dir() else None

    def path(self, step: int) -> Path:
        """Return the folder of the checkpoint of a step."""
        return self.folder / f"step-{step:08d}"

    def _folders(self) -> dict[int, Path]:
        try:
            for path in self.folder.glob(".step-*.replaced"):
                restore(path.with_name(path.name[1:].removesuffix(".replaced")))
            names = os.listdir(self.folder)
        except (FileNotFoundError, NotADirectoryError):
            return {}  # nothing was saved yet, or a save will raise the reason
        steps = {int(match[1]): match[0] for match in map(_STEP.fullmatch, names) if match}
        return {step: self.folder / steps[step] for step in sorted(steps)}

    def _prune(self, step: int) -> None:
        """Remove all but the newest checkpoints up to this step, and the best one.

        Later ones, of a run that was rewound, are not counted.
        """
        try:
            best = read_best_mark(self.folder)
        except ConfigError as error:
            _LOG.warning("no checkpoint is removed, since the best one is not known: %s", error)
            return
        past = [(number, path) for number, path in self._folders().items() if number <= step]
        for number, path in past[: -self.keep_last_n]:
            if best is None or number != best.step:
                try:
                    discard(path)
                except OSError as error:
                    _LOG.warning("cannot remove the old checkpoint %s: %s", path, error)
