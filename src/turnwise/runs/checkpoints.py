"""Checkpoints: folders that are saved whole, and opened only if all of their files are intact.

`manifest.json` has the size and sha256 of each file. Its last line is the sha256 of the bytes
before it, so that damage to the manifest itself is detected too. Nothing here knows models: callers
write the files.
"""

import hashlib
import json
import logging
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from turnwise.bounded_files import parse_json, read_bytes
from turnwise.errors import CheckpointError, ConfigError
from turnwise.runs.headline import is_number
from turnwise.whole_files import discard, explained, in_order, write_folder, write_whole

MANIFEST = "manifest.json"
FORMAT = 1
_LOG = logging.getLogger("turnwise")
_STEP = re.compile(r"step-(\d{8,})")
_MAX_BYTES = 1 << 24
_MAX_DEPTH = 32
"""The limit of nested folders in a checkpoint."""
_SEAL = b',\n  "sha256": "'
_END = b'"\n}\n'


class Defect(Exception):
    """What is wrong with a folder's content; the caller adds which folder it is."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint folder."""

    path: Path
    step: int
    meta: dict[str, Any]
    files: dict[str, int]
    """The size of each file in bytes: {"model.safetensors": 4400152, "state.json": 812}"""
    digests: dict[str, str] = field(repr=False)
    """The sha256 of each file when it was saved."""

    def file(self, name: str) -> Path:
        """Return the path of a file of the checkpoint."""
        if name not in self.files:
            raise CheckpointError(
                f"the checkpoint {self.path} has no file {name!r}; it has {', '.join(self.files)}"
            )
        return self.path / name


# ---- one checkpoint ----


def save_checkpoint_to(
    path: str | os.PathLike[str],
    write: Callable[[Path], None],
    meta: Mapping[str, Any],
    step: int,
) -> Checkpoint:
    """Save to a path of the user's choice; it may replace a checkpoint, but nothing else."""
    path = Path(path).expanduser().resolve()

    def check() -> None:
        try:
            if path.exists() and not path.is_dir():
                raise Defect("it is a file")
            if path.exists() and any(path.iterdir()):
                for name in sorted({*_names(path)} - {MANIFEST, *read_manifest(path).files}):
                    raise Defect(f"{name} is not a part of the checkpoint there")
        except Defect as defect:
            raise CheckpointError(
                f"{path} is not a checkpoint and is not overwritten: {defect}. "
                "Save to a new or empty folder."
            ) from None

    return _save(path, write, meta, step, check)


def _save(
    path: Path,
    write: Callable[[Path], None],
    meta: Mapping[str, Any],
    step: int,
    check: Callable[[], None] = lambda: None,
) -> Checkpoint:
    if step < 0:
        raise ConfigError(f"step got {step}, expected 0 or more")
    for key, value in meta.items():
        try:
            json.dumps({key: value}, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise CheckpointError(
                f"meta[{key!r}] cannot go into a checkpoint: {error}. Expected finite numbers, "
                "strings, booleans, None, and lists and dicts of them."
            ) from error
    contents: list[dict[str, Any]] = []

    def fill(draft: Path) -> None:
        write(draft)
        try:
            contents.append(write_manifest(draft, step, meta))
        except Defect as defect:
            raise CheckpointError(f"cannot save {path}: {defect}") from None

    with explained(path):
        write_folder(path, fill, check)
    return _described(path, json.loads(json.dumps(contents[0])))


def write_manifest(folder: Path, step: int, meta: Mapping[str, Any]) -> dict[str, Any]:
    """Write the manifest of the files in a folder, and return its content."""
    names = sorted(_names(folder))
    if MANIFEST in names:
        raise Defect(f"{MANIFEST} is reserved for the manifest; use another file name")
    files = {
        name: {"size": (folder / name).stat().st_size, "sha256": _digest(folder / name)}
        for name in names
    }
    content = {"format": FORMAT, "step": step, "meta": dict(meta), "files": files}
    (folder / MANIFEST).write_bytes(sealed_json(content))
    return content


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Return the checkpoint in a folder, after verifying all of its files."""
    path = Path(path).expanduser().resolve()
    # A save that was killed may have renamed it; then this restores it.
    with suppress(OSError), in_order(path.parent, path.name):
        pass
    if not path.is_dir():
        kind = "it is a file" if path.exists() else "there is no such folder"
        raise CheckpointError(f"cannot open the checkpoint {path}: {kind}")
    return _verified(path)


def _verified(path: Path, step: int | None = None) -> Checkpoint:
    """Return the checkpoint at `path` after verifying its files; `step` is that of its name."""
    try:
        checkpoint = read_manifest(path)
        names = set(_names(path)) - {MANIFEST}
        for name in sorted(checkpoint.files.keys() - names):
            raise Defect(f"{name}: it is missing")
        for name in sorted(names - checkpoint.files.keys()):
            raise Defect(f"{name}: it was not there when the checkpoint was saved")
        for name, expected in checkpoint.files.items():
            size = (path / name).stat().st_size
            if size != expected:
                raise Defect(f"{name}: it has {size} bytes, and the manifest {expected}")
        for name, digest in checkpoint.digests.items():
            if _digest(path / name) != digest:
                raise Defect(f"{name}: its sha256 is not that of the manifest")
        if step is not None and checkpoint.step != step:
            raise Defect(f"it is of step {checkpoint.step}")
    except OSError as error:
        name = Path(error.filename or path).name
        raise CheckpointError(f"cannot read {name} of {path}: {error.strerror}") from error
    except Defect as defect:
        inner = [*path.glob(f"step-*/{MANIFEST}"), *path.glob(f"checkpoints/step-*/{MANIFEST}")]
        is_run = inner and not (path / MANIFEST).exists()
        hint = f". Did you mean {max(inner).parent}?" if is_run else ""
        raise CheckpointError(f"cannot use the checkpoint {path}: {defect}{hint}") from None
    return checkpoint


def read_manifest(path: Path) -> Checkpoint:
    """Return a checkpoint without comparing it with its files."""
    manifest = path / MANIFEST
    if manifest.is_symlink() or not manifest.is_file():
        raise Defect(f"it has no {MANIFEST}: not a checkpoint, or a save that did not finish")
    content = _read_sealed_json(manifest)
    try:
        checkpoint = _described(path, content)
        is_whole = _is_count(checkpoint.step) and all(map(_is_count, checkpoint.files.values()))
    except (AttributeError, KeyError, TypeError, ValueError):
        is_whole = False
    if not is_whole:
        raise Defect(f"{MANIFEST}: not a manifest of a checkpoint")
    for name in checkpoint.files:
        parts = name.split("/")
        is_inside = len(parts) <= _MAX_DEPTH and not {"", ".", ".."} & set(parts)
        if not is_inside or "\0" in name or name == MANIFEST:
            raise Defect(
                f"{MANIFEST}: it names {name!r:.200}, which is not a file of the checkpoint"
            )
    return checkpoint


def sealed_json(content: Mapping[str, Any]) -> bytes:
    """Return JSON whose last line is the sha256 of everything before it."""
    head = json.dumps(content, indent=2, allow_nan=False).removesuffix("\n}").encode()
    return head + _SEAL + hashlib.sha256(head).hexdigest().encode() + _END


def _read_sealed_json(path: Path) -> dict[str, Any]:
    """The content that `sealed_json` wrote; any changed byte is refused."""
    try:
        raw = read_bytes(path, _MAX_BYTES)
        head, _, tail = raw.rpartition(_SEAL)
        if tail != hashlib.sha256(head).hexdigest().encode() + _END:
            raise Defect(f"{path.name}: it was changed or cut since it was written")
        content: dict[str, Any] = parse_json(raw, path.name)
    except ConfigError as error:
        raise Defect(str(error)) from None
    if content.get("format") != FORMAT:
        raise Defect(
            f"{path.name}: it has format {content.get('format')!r}, and this turnwise reads "
            f"{FORMAT}. A newer turnwise wrote it; install that one"
        )
    return content


def _described(path: Path, content: Mapping[str, Any]) -> Checkpoint:
    """Return the checkpoint that a manifest describes."""
    return Checkpoint(
        path=path,
        step=content["step"],
        meta=dict(content["meta"]),
        files={name: facts["size"] for name, facts in content["files"].items()},
        digests={name: facts["sha256"] for name, facts in content["files"].items()},
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _names(folder: Path, prefix: str = "") -> Iterator[str]:
    """Yield every file below `folder`; raise for links and devices."""
    if prefix.count("/") >= _MAX_DEPTH:
        raise Defect(f"{prefix:.80}...: more than {_MAX_DEPTH} folders inside each other")
    with os.scandir(folder) as entries:
        for entry in entries:
            name = prefix + entry.name
            if entry.is_dir(follow_symlinks=False):
                yield from _names(Path(entry.path), f"{name}/")
            elif entry.is_file(follow_symlinks=False):
                yield name
            else:
                raise Defect(f"{name}: it is a link or a device, expected a plain file")


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

    It takes no lock. The checkpoint itself may have been removed.
    """
    try:
        content = _read_sealed_json(folder / "best.json")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Defect(f"best.json: {error.strerror}") from error
    mark: dict[str, Any] = {one.name: content.get(one.name) for one in fields(BestMark)}
    bounds, number = (mark["low"], mark["high"]), mark["num_episodes"]
    if (
        not _is_count(mark["step"])
        or not isinstance(mark["metric"], str)
        or not is_number(mark["value"])
        or not (bounds == (None, None) or all(map(is_number, bounds)))
        or not (number is None or _is_count(number))
    ):
        raise Defect("best.json: it does not say which checkpoint is the best")
    return BestMark(**mark)


@dataclass(frozen=True)
class BestCheckpoint(Checkpoint):
    """The checkpoint that is marked as the best, with its metric."""

    mark: BestMark

    def __str__(self) -> str:
        return str(self.mark)


# ---- all of a run ----


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
        saved = _save(self.folder / f"step-{step:08d}", write, meta, step)
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
            inode = _inode(path)
            try:
                checkpoint = _verified(path, step)
            except CheckpointError as error:
                if inode is None or _inode(path) != inode:
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
                names = os.listdir(self.folder)
        except (FileNotFoundError, NotADirectoryError):
            return {}  # nothing was saved yet, or a save will raise the reason
        except OSError as error:
            raise CheckpointError(f"cannot read {self.folder}: {error.strerror}") from error
        steps = {int(match[1]): match[0] for match in map(_STEP.fullmatch, names) if match}
        return {step: self.folder / steps[step] for step in sorted(steps)}

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
        past = {number: path for number, path in self._folders().items() if number <= step}
        for number in [*past][: -self.keep_last_n]:
            if best is not None and number == best.step:
                continue
            try:
                with in_order(self.folder):
                    discard(past[number])
            except FileNotFoundError:
                continue  # another process was first
            except OSError as error:
                _LOG.warning("cannot remove the old checkpoint %s: %s", past[number], error)

    def _check_ours(self, checkpoint: Checkpoint) -> None:
        if checkpoint.path.parent != self.folder:
            raise CheckpointError(f"{checkpoint.path} is not a checkpoint of {self.folder}")
        if not checkpoint.path.is_dir():
            raise CheckpointError(f"{checkpoint.path} does not exist; it may have been pruned")


def _inode(path: Path) -> int | None:
    """Return the inode of a folder; None if there is none."""
    try:
        return path.lstat().st_ino
    except FileNotFoundError:
        return None
    except OSError:
        return 0  # it exists, but cannot be accessed
