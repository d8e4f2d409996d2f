"""The store of a run's checkpoints. It does not know models: callers write the files."""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from turnwise.errors import CheckpointError, ConfigError
from turnwise.runs.checkpoint import (
    FORMAT,
    Checkpoint as Checkpoint,
    Defect,
    is_step,
    open_checkpoint as open_checkpoint,
    read_manifest,
    read_sealed_json,
    save_at,
    save_checkpoint_to as save_checkpoint_to,
    sealed_json,
    verified,
)
from turnwise.runs.disk_errors import explained
from turnwise.runs.headline import is_number
from turnwise.runs.whole_folders import discard, in_order
from turnwise.whole_files import write_whole

_LOG = logging.getLogger("turnwise")
_STEP = re.compile(r"step-(\d{8,})")


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

    It takes no lock. The checkpoint itself may have been removed.
    """
    try:
        content = read_sealed_json(folder / "best.json")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Defect(f"best.json: {error.strerror}") from error
    mark: dict[str, Any] = {field.name: content.get(field.name) for field in fields(BestMark)}
    has_interval = is_number(mark["low"]) and is_number(mark["high"])
    if not has_interval:
        mark["low"] = mark["high"] = None
    if not is_step(mark["num_episodes"]):
        mark["num_episodes"] = None
    is_mark = isinstance(mark["metric"], str) and is_number(mark["value"])
    if not (is_mark and is_step(mark["step"])):
        raise Defect("best.json: it does not say which checkpoint is the best")
    return BestMark(**mark)


@dataclass(frozen=True)
class BestCheckpoint(Checkpoint):
    """The checkpoint that is marked as the best, with its metric."""

    mark: BestMark

    def __str__(self) -> str:
        return str(self.mark)


class CheckpointStore:
    """The checkpoints of a run: `step-00000012` and so on in one folder, and `best.json`.

    Other processes may read and write the same folder concurrently.
    """

    def __init__(self, folder: str | os.PathLike[str], keep_last_n: int = 3) -> None:
        if keep_last_n < 1:
            raise ConfigError(f"keep_last_n got {keep_last_n}, expected 1 or more")
        self.folder = Path(folder).expanduser().resolve()
        self.keep_last_n = keep_last_n
        self._folders()  # removes what a killed save left behind

    def save(self, step: int, write: Callable[[Path], None], meta: Mapping[str, Any]) -> Checkpoint:
        """Save the files that `write` creates in a folder, then remove old checkpoints."""
        saved = save_at(self.folder / f"step-{step:08d}", write, meta, step)
        self._prune(step)
        return saved

    def list(self) -> list[Checkpoint]:
        """Return the checkpoints that have a valid manifest, by step; files are not verified."""
        checkpoints = []
        for path in self._folders().values():
            with suppress(Defect, OSError):
                checkpoints.append(read_manifest(path))
        return checkpoints

    def newest(self) -> Checkpoint | None:
        """Return the newest intact checkpoint; damaged ones are skipped with a warning."""
        damages: list[str] = []
        for step, path in reversed(self._folders().items()):
            identity = _identity(path)
            try:
                checkpoint = verified(path, step)
            except CheckpointError as error:
                if identity is None or _identity(path) != identity:
                    return self.newest()  # removed or replaced in the meantime
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

    def remove(self, checkpoint: Checkpoint) -> None:
        """Delete a checkpoint, for a run that is rewound to an earlier step."""
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
        """Mark a checkpoint as the best, which is never pruned."""
        self._check_ours(checkpoint)
        value = float(value)
        if not math.isfinite(value):
            raise CheckpointError(f"the best {metric} got {value}, expected a finite number")
        low, high = interval or (None, None)
        mark = asdict(BestMark(checkpoint.step, metric, value, low, high, num_episodes))
        known = {name: entry for name, entry in mark.items() if entry is not None}
        path = self.folder / "best.json"
        with explained(path), in_order(self.folder):
            write_whole(path, sealed_json({"format": FORMAT, **known}))

    @property
    def best(self) -> BestCheckpoint | None:
        """The best checkpoint, not verified; None if none is marked or it was removed."""
        try:
            mark = read_best_mark(self.folder)
        except Defect as defect:
            _LOG.warning("which checkpoint in %s is best is not known: %s.", self.folder, defect)
            return None
        marked = [saved for saved in self.list() if mark and saved.step == mark.step]
        return BestCheckpoint(**vars(marked[0]), mark=mark) if mark and marked else None

    def _folders(self) -> dict[int, Path]:
        """Return every folder with the name of a checkpoint, by step."""
        try:
            with in_order(self.folder):
                names = sorted(os.listdir(self.folder))
        except (FileNotFoundError, NotADirectoryError):
            return {}  # nothing was saved yet, or a save will raise the reason
        except OSError as error:
            raise CheckpointError(f"cannot read {self.folder}: {error.strerror}") from error
        steps = {name: match for name in names if (match := _STEP.fullmatch(name))}
        folders = {int(match[1]): self.folder / name for name, match in steps.items()}
        return dict(sorted(folders.items()))

    def _prune(self, step: int) -> None:
        """Remove all but the newest checkpoints up to this step.

        Later ones, of a run that was rewound, are not counted.
        """
        try:
            best = read_best_mark(self.folder)
        except Defect as defect:
            _LOG.warning(
                "old checkpoints in %s are kept, since it is unknown which one is the best: "
                "%s. Remove the file to allow pruning.",
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
            raise CheckpointError(f"{checkpoint.path} does not exist; it may have been pruned")


def _identity(path: Path) -> int | None:
    """Return the inode of a folder; None if there is none."""
    try:
        return path.lstat().st_ino
    except FileNotFoundError:
        return None
    except OSError:
        return 0  # it exists, but cannot be accessed
