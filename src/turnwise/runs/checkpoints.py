"""The store of a run's checkpoints. It knows nothing of models: what is in one is the caller's."""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnwise.errors import CheckpointError, ConfigError
from turnwise.runs.best_mark import BestMark as BestMark, read_best_mark
from turnwise.runs.checkpoint import (
    Checkpoint as Checkpoint,
    described,
    open_checkpoint as open_checkpoint,
    save_at,
    save_checkpoint_to as save_checkpoint_to,
    verified,
)
from turnwise.runs.disk_errors import explained
from turnwise.runs.manifest import (
    FORMAT,
    Defect,
    read_manifest,
    sealed_json,
)
from turnwise.runs.whole_folders import discard, in_order, write_file

_LOG = logging.getLogger("turnwise")
_STEP = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True)
class BestCheckpoint(Checkpoint):
    """The checkpoint that was marked as the best, and what it is the best by."""

    mark: BestMark

    @property
    def metric(self) -> str:
        return self.mark.metric

    @property
    def value(self) -> float:
        return self.mark.value

    def __str__(self) -> str:
        return str(self.mark)


class CheckpointStore:
    """The checkpoints of a run: `step-00000012` and so on in one folder, and `best.json`.

    Other processes may read and write the same folder meanwhile.
    """

    def __init__(self, folder: str | os.PathLike[str], keep_last_n: int = 3) -> None:
        if keep_last_n < 1:
            raise ConfigError(f"keep_last_n got {keep_last_n}, expected 1 or more")
        self.folder = Path(folder).expanduser().resolve()
        self.keep_last_n = keep_last_n
        self._folders()  # what a save that was killed left behind goes now

    def save(self, step: int, write: Callable[[Path], None], meta: Mapping[str, Any]) -> Checkpoint:
        """Keep what `write` puts into the folder that it is given; older ones may go then."""
        before = self.list()
        expected = sum(before[-1].files.values()) if before else 0
        path = self.folder / f"step-{step:08d}"
        saved = save_at(path, write, meta, step, names="*", num_bytes_expected=expected)
        self._prune(step)
        return saved

    def list(self) -> list[Checkpoint]:
        """By step, without reading more than their manifests; those without a good one lack."""
        found = []
        for path in self._folders().values():
            try:
                found.append(described(path, read_manifest(path)))
            except (Defect, OSError):
                continue
        return found

    def newest(self) -> Checkpoint | None:
        """The newest whole one, verified; damaged ones are named in a warning and passed over."""
        damages: list[str] = []
        for step, path in reversed(self._folders().items()):
            identity = _identity(path)
            try:
                found = verified(path, step)
            except CheckpointError as error:
                if identity is None or _identity(path) != identity:
                    return self.newest()  # removed or replaced since we looked
                damages.append(str(error))
                continue
            for damage in damages:
                _LOG.warning("%s. Taking %s instead.", damage, found.path.name)
            return found
        if damages:
            raise CheckpointError(
                f"none of the checkpoints in {self.folder} is whole:\n" + "\n".join(damages)
            )
        return None

    def remove(self, checkpoint: Checkpoint) -> None:
        """Delete one; for a run that goes back to an earlier step and on from there."""
        self._check_ours(checkpoint)
        try:
            with in_order(self.folder):
                discard(checkpoint.path)
        except OSError as error:
            raise CheckpointError(f"cannot remove {checkpoint.path}: {error.strerror}") from error

    def mark_best(
        self,
        checkpoint: Checkpoint,
        metric: str,
        value: float,
        interval: tuple[float, float] | None = None,
        num_episodes: int | None = None,
    ) -> None:
        """From now on this one is the best, and stays."""
        self._check_ours(checkpoint)
        value = float(value)
        if not math.isfinite(value):
            raise CheckpointError(f"the best {metric} got {value}, expected a finite number")
        content = {
            "format": FORMAT,
            "step": checkpoint.step,
            "metric": metric,
            "value": value,
            **({} if interval is None else {"low": interval[0], "high": interval[1]}),
            **({} if num_episodes is None else {"num_episodes": num_episodes}),
        }
        path = self.folder / "best.json"
        with explained(path), in_order(self.folder):
            write_file(path, sealed_json(content))

    @property
    def best(self) -> BestCheckpoint | None:
        """The one that was marked last, not verified; None if it is gone or none was."""
        try:
            mark = read_best_mark(self.folder)
        except Defect as defect:
            _LOG.warning("which checkpoint in %s is best is not known: %s.", self.folder, defect)
            return None
        marked = [found for found in self.list() if mark and found.step == mark.step]
        return BestCheckpoint(**vars(marked[0]), mark=mark) if mark and marked else None

    def _folders(self) -> dict[int, Path]:
        """Every folder that is named as a checkpoint, by step."""
        try:
            with in_order(self.folder):
                names = sorted(os.listdir(self.folder))
        except (FileNotFoundError, NotADirectoryError):
            return {}  # nothing was saved yet, or a save will say what is in the way
        except OSError as error:
            raise CheckpointError(f"cannot read {self.folder}: {error.strerror}") from error
        steps = {name: match for name in names if (match := _STEP.fullmatch(name))}
        found = {int(match[1]): self.folder / name for name, match in steps.items()}
        return dict(sorted(found.items()))

    def _prune(self, step: int) -> None:
        """Of this step and earlier ones, keep the newest few.

        Later ones are there if the run went back, or they are damaged: they must not count.
        """
        try:
            best = read_best_mark(self.folder)
        except Defect as defect:
            _LOG.warning(
                "old checkpoints in %s stay, as one of them is the best and which is not known: "
                "%s. Remove the file to let them go.",
                self.folder,
                defect,
            )
            return
        kept = set() if best is None else {best.step}
        past = {number: path for number, path in self._folders().items() if number <= step}
        doomed = [past[number] for number in [*past][: -self.keep_last_n] if number not in kept]
        for path in doomed:
            try:
                with in_order(self.folder):
                    discard(path)
            except FileNotFoundError:
                continue  # another process was first
            except OSError as error:
                _LOG.warning("cannot remove the old checkpoint %s: %s", path, error.strerror)

    def _check_ours(self, checkpoint: Checkpoint) -> None:
        if checkpoint.path.parent != self.folder:
            raise CheckpointError(f"{checkpoint.path} is not a checkpoint of {self.folder}")
        if not checkpoint.path.is_dir():
            raise CheckpointError(f"{checkpoint.path} is gone; a newer one may have replaced it")


def _identity(path: Path) -> int | None:
    """Another number when another folder has the name; None when none has."""
    try:
        return path.lstat().st_ino
    except FileNotFoundError:
        return None
    except OSError:
        return 0  # there, and not ours to look at
