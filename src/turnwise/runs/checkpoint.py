"""Saves a checkpoint folder atomically, and opens it only if all of its files are intact."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnwise.errors import CheckpointError, ConfigError
from turnwise.runs.manifest import (
    MANIFEST,
    Defect,
    Manifest,
    checked_meta,
    read_manifest,
    unknown_files,
    verify,
    write_manifest,
)
from turnwise.runs.whole_folders import in_order, write_folder


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint folder."""

    path: Path
    step: int
    meta: dict[str, Any]
    files: dict[str, int]
    """The size of each file in bytes: {"model.safetensors": 4400152, "state.json": 812}"""

    def file(self, name: str) -> Path:
        """Return the path of a file of the checkpoint."""
        if name not in self.files:
            raise CheckpointError(
                f"the checkpoint {self.path} has no file {name!r}; it has {', '.join(self.files)}"
            )
        return self.path / name


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Return the checkpoint in a folder, after verifying all of its files."""
    path = Path(path).expanduser().resolve()
    # A save that was killed may have renamed it; then this restores it.
    with suppress(OSError), in_order(path.parent, glob.escape(path.name)):
        pass
    if not path.is_dir():
        kind = "it is a file" if path.exists() else "there is no such folder"
        raise CheckpointError(f"cannot open the checkpoint {path}: {kind}")
    return verified(path)


def save_checkpoint_to(
    path: str | os.PathLike[str],
    write: Callable[[Path], None],
    meta: Mapping[str, Any],
    step: int,
) -> Checkpoint:
    """Save to a path of the user's choice; it may replace a checkpoint, but nothing else."""
    path = Path(path).expanduser().resolve()

    def may_replace() -> None:
        if path.exists() and not path.is_dir():
            raise _occupied(path, "it is a file")
        if path.exists() and any(path.iterdir()):
            try:
                others = unknown_files(path, read_manifest(path))
            except Defect as defect:
                raise _occupied(path, str(defect)) from None
            if others:
                raise _occupied(path, f"{others[0]} is not a part of the checkpoint there")

    return save_at(path, write, meta, step, names=glob.escape(path.name), may_replace=may_replace)


def save_at(
    path: Path,
    write: Callable[[Path], None],
    meta: Mapping[str, Any],
    step: int,
    *,
    names: str,
    may_replace: Callable[[], None] = lambda: None,
    num_bytes_expected: int = 0,
) -> Checkpoint:
    """Save at `path`, unless `may_replace` raises; see `write_folder`."""
    if step < 0:
        raise ConfigError(f"step got {step}, expected 0 or more")
    plain = checked_meta(meta)
    manifests = []

    def seal(temporary: Path) -> Path:
        try:
            manifests.append(write_manifest(temporary, step, plain))
        except Defect as defect:
            raise CheckpointError(f"cannot save {path}: {defect}") from None
        return temporary / MANIFEST

    write_folder(
        path,
        write,
        seal,
        names=names,
        may_replace=may_replace,
        num_bytes_expected=num_bytes_expected,
    )
    return described(path, manifests[0])


def verified(path: Path, step: int | None = None) -> Checkpoint:
    """Return the checkpoint at `path` after verifying its files; `step` is that of its name."""
    try:
        manifest = verify(path)
    except OSError as error:
        name = Path(error.filename or path).name
        raise CheckpointError(f"cannot read {name} of {path}: {error.strerror}") from error
    except Defect as defect:
        raise CheckpointError(f"cannot use the checkpoint {path}: {defect}{_hint(path)}") from None
    if step is not None and manifest.step != step:
        raise CheckpointError(f"cannot use the checkpoint {path}: it is of step {manifest.step}")
    return described(path, manifest)


def described(path: Path, manifest: Manifest) -> Checkpoint:
    """Return the checkpoint at `path` from its manifest."""
    sizes = {name: facts.size for name, facts in manifest.files.items()}
    return Checkpoint(path, manifest.step, manifest.meta, sizes)


def _hint(path: Path) -> str:
    """Suggest a checkpoint to a user who named the run or the folder of its checkpoints."""
    if (path / MANIFEST).exists():
        return ""
    inner = [*path.glob(f"step-*/{MANIFEST}"), *path.glob(f"checkpoints/step-*/{MANIFEST}")]
    return f". Did you mean {max(inner).parent}?" if inner else ""


def _occupied(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(
        f"{path} is not a checkpoint and is not overwritten: {reason}. "
        "Save to a new or empty folder."
    )
