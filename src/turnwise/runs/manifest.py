"""The manifest of a checkpoint, by which damage to its files is detected.

`manifest.json` has the size and sha256 of each file. Its last line is the sha256 of the bytes
before it, so that damage to the manifest itself is detected too.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnwise.bounded_files import parse_json, read_bytes
from turnwise.errors import CheckpointError, ConfigError

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
class FileFacts:
    """Size and hash of a file when it was saved."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The content of `manifest.json`."""

    step: int
    meta: dict[str, Any]
    files: dict[str, FileFacts]
    """By relative path: `model.safetensors`, `tokenizer/vocab.json`."""


def checked_meta(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return `meta` after a round trip through JSON; NaN and infinity are refused."""
    for key, value in meta.items():
        try:
            json.dumps({key: value}, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise CheckpointError(
                f"meta[{key!r}] cannot go into a checkpoint: {error}. Expected finite numbers, "
                "strings, booleans, None, and lists and dicts of them."
            ) from error
    copy: dict[str, Any] = json.loads(json.dumps(dict(meta)))
    return copy


def sealed_json(content: Mapping[str, Any]) -> bytes:
    """Return JSON whose last line is the sha256 of everything before it."""
    head = json.dumps(content, indent=2, allow_nan=False).removesuffix("\n}").encode()
    return head + _SEAL + hashlib.sha256(head).hexdigest().encode() + _END


def read_sealed_json(path: Path) -> dict[str, Any]:
    """The content that `sealed_json` wrote; any changed byte is refused."""
    try:
        raw = read_bytes(path, _MAX_BYTES)
    except ConfigError as error:
        raise Defect(str(error)) from None
    head, _, tail = raw.rpartition(_SEAL)
    if tail != hashlib.sha256(head).hexdigest().encode() + _END:
        raise Defect(f"{path.name}: it was changed or cut since it was written")
    try:
        content: dict[str, Any] = parse_json(raw, path.name)
    except ConfigError as error:
        raise Defect(str(error)) from None
    if content.get("format") != FORMAT:
        raise Defect(
            f"{path.name}: it has format {content.get('format')!r}, and this turnwise reads "
            f"{FORMAT}. A newer turnwise wrote it; install that one"
        )
    return content


def write_manifest(folder: Path, step: int, meta: Mapping[str, Any]) -> Manifest:
    """Write the manifest of the files in `folder`."""
    names = sorted(_names(folder))
    if MANIFEST in names:
        raise Defect(f"{MANIFEST} is reserved for the manifest; use another file name")
    files = {
        name: FileFacts((folder / name).stat().st_size, _digest(folder / name)) for name in names
    }
    content = {
        "format": FORMAT,
        "step": step,
        "meta": meta,
        "files": {name: vars(facts) for name, facts in files.items()},
    }
    (folder / MANIFEST).write_bytes(sealed_json(content))
    return Manifest(step, dict(meta), files)


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest without comparing it with the files, which `verify` does."""
    path = folder / MANIFEST
    if path.is_symlink() or not path.is_file():
        raise Defect(f"it has no {MANIFEST}: not a checkpoint, or a save that did not finish")
    content = read_sealed_json(path)
    try:
        files = {name: FileFacts(**facts) for name, facts in content["files"].items()}
        manifest = Manifest(content["step"], dict(content["meta"]), files)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Defect(f"{MANIFEST}: not a manifest of a checkpoint") from error
    if not is_step(manifest.step) or not all(is_step(facts.size) for facts in files.values()):
        raise Defect(f"{MANIFEST}: not a manifest of a checkpoint")
    for name in files:
        if not _is_inside(name) or name == MANIFEST:
            raise Defect(
                f"{MANIFEST}: it names {name!r:.200}, which is not a file of the checkpoint"
            )
    return manifest


def is_step(value: object) -> bool:
    """Return whether a value is a non-negative integer."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_inside(name: str) -> bool:
    """Return whether a path is relative, normalised and inside of the folder.

    >>> [_is_inside(name) for name in ("a/b", "../a", "/a", "a//b", "./a", "a/..", "")]
    [True, False, False, False, False, False, False]
    """
    parts = name.split("/")
    return len(parts) <= _MAX_DEPTH and not {"", ".", ".."} & set(parts) and "\0" not in name


def verify(folder: Path) -> Manifest:
    """Return the manifest after verifying every file against it."""
    manifest = read_manifest(folder)
    found = set(_names(folder)) - {MANIFEST}
    for name in sorted(manifest.files.keys() - found):
        raise Defect(f"{name}: it is missing")
    for name in unknown_files(folder, manifest):
        raise Defect(f"{name}: it was not there when the checkpoint was saved")
    for name, facts in manifest.files.items():
        size = (folder / name).stat().st_size
        if size != facts.size:
            raise Defect(f"{name}: it has {size} bytes, and the manifest {facts.size}")
    for name, facts in manifest.files.items():
        if _digest(folder / name) != facts.sha256:
            raise Defect(f"{name}: its sha256 is not that of the manifest")
    return manifest


def unknown_files(folder: Path, manifest: Manifest) -> list[str]:
    """Return the files in `folder` that the manifest does not have."""
    return sorted(set(_names(folder)) - manifest.files.keys() - {MANIFEST})


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
