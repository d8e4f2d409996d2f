"""One checkpoint: a folder that is saved whole, and opened only if all of its files are intact.

`manifest.json` has the size and sha256 of each file. Its last line is the sha256 of the bytes
before it, so that damage to the manifest itself is detected too.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from turnwise.bounded_files import parse_json, read_bytes
from turnwise.errors import CheckpointError, ConfigError
from turnwise.runs.whole_folders import in_order, write_folder

MANIFEST = "manifest.json"
FORMAT = 1
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


# ---- saving ----


def save_checkpoint_to(
    path: str | os.PathLike[str],
    write: Callable[[Path], None],
    meta: Mapping[str, Any],
    step: int,
) -> Checkpoint:
    """Save to a path of the user's choice; it may replace a checkpoint, but nothing else."""
    path = Path(path).expanduser().resolve()

    def may_replace() -> None:
        try:
            if path.exists() and not path.is_dir():
                raise Defect("it is a file")
            if path.exists() and any(path.iterdir()):
                for name in _unknown_files(read_manifest(path)):
                    raise Defect(f"{name} is not a part of the checkpoint there")
        except Defect as defect:
            raise CheckpointError(
                f"{path} is not a checkpoint and is not overwritten: {defect}. "
                "Save to a new or empty folder."
            ) from None

    return save_at(path, write, meta, step, name=path.name, may_replace=may_replace)


def save_at(
    path: Path,
    write: Callable[[Path], None],
    meta: Mapping[str, Any],
    step: int,
    *,
    name: str = "",
    may_replace: Callable[[], None] = lambda: None,
) -> Checkpoint:
    """Save at `path`, unless `may_replace` raises; see `write_folder`."""
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

    saved: list[Checkpoint] = []

    def seal(draft: Path) -> Path:
        try:
            saved.append(_described(path, write_manifest(draft, step, meta)))
        except Defect as defect:
            raise CheckpointError(f"cannot save {path}: {defect}") from None
        return draft / MANIFEST

    write_folder(path, write, seal, name=name, may_replace=may_replace)
    return saved[0]


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


def sealed_json(content: Mapping[str, Any]) -> bytes:
    """Return JSON whose last line is the sha256 of everything before it."""
    head = json.dumps(content, indent=2, allow_nan=False).removesuffix("\n}").encode()
    return head + _SEAL + hashlib.sha256(head).hexdigest().encode() + _END


# ---- reading ----


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Return the checkpoint in a folder, after verifying all of its files."""
    path = Path(path).expanduser().resolve()
    # A save that was killed may have renamed it; then this restores it.
    with suppress(OSError), in_order(path.parent, path.name):
        pass
    if not path.is_dir():
        kind = "it is a file" if path.exists() else "there is no such folder"
        raise CheckpointError(f"cannot open the checkpoint {path}: {kind}")
    return verified(path)


def verified(path: Path, step: int | None = None) -> Checkpoint:
    """Return the checkpoint at `path` after verifying its files; `step` is that of its name."""
    try:
        checkpoint = read_manifest(path)
        for name in sorted(checkpoint.files.keys() - set(_names(path))):
            raise Defect(f"{name}: it is missing")
        for name in _unknown_files(checkpoint):
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
    """Return a checkpoint without comparing it with its files, which `verified` does."""
    manifest = path / MANIFEST
    if manifest.is_symlink() or not manifest.is_file():
        raise Defect(f"it has no {MANIFEST}: not a checkpoint, or a save that did not finish")
    content = read_sealed_json(manifest)
    try:
        checkpoint = _described(path, content)
        is_whole = is_step(checkpoint.step) and all(map(is_step, checkpoint.files.values()))
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


def read_sealed_json(path: Path) -> dict[str, Any]:
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
    """Return the checkpoint that a manifest describes, as JSON gives it back."""
    content = json.loads(json.dumps(content))
    return Checkpoint(
        path=path,
        step=content["step"],
        meta=dict(content["meta"]),
        files={name: facts["size"] for name, facts in content["files"].items()},
        digests={name: facts["sha256"] for name, facts in content["files"].items()},
    )


def is_step(value: object) -> bool:
    """Return whether a value is a non-negative integer."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _unknown_files(checkpoint: Checkpoint) -> list[str]:
    """Return the files in the folder that the manifest does not have."""
    return sorted(set(_names(checkpoint.path)) - checkpoint.files.keys() - {MANIFEST})


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
