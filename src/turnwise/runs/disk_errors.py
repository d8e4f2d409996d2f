"""Explains errors of the disk: which folder, what is wrong, and the fix."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.filesize import decimal

from turnwise.errors import CheckpointError

_FULL = {errno.ENOSPC, errno.EDQUOT}
_FORBIDDEN = {errno.EACCES, errno.EPERM}
_IN_THE_WAY = {errno.ENOTDIR, errno.EEXIST}
_OF_THE_DISK = {*_FULL, *_FORBIDDEN, errno.EROFS, errno.EFBIG, errno.EIO}


@contextmanager
def explained(
    path: Path,
    temporary: Path | None = None,
    num_bytes_expected: int = 0,
    *,
    only_disk: bool = False,
) -> Iterator[None]:
    """Turn an `OSError` while `path` is written into a `CheckpointError` with the reason.

    With `only_disk`, errors that are not about the disk, such as a missing file, propagate.
    """
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        number = _error_number(error)
        if number is None or (only_disk and not _is_about(error, number, temporary)):
            raise
        written = _size(temporary) if temporary else 0
        reason = disk_reason(path, number, written, num_bytes_expected)
        raise CheckpointError(
            f"cannot save {path}: {reason}. What was saved before is untouched."
        ) from error


def _error_number(error: Exception) -> int | None:
    if isinstance(error, OSError):
        return error.errno
    # safetensors reports a full disk only in its message.
    return errno.ENOSPC if os.strerror(errno.ENOSPC) in str(error) else None


def _is_about(error: Exception, number: int, temporary: Path | None) -> bool:
    """Return whether an error is about the disk that is written to, and not about another file."""
    filename = getattr(error, "filename", None)
    ours = not isinstance(filename, str) or Path(filename).is_relative_to(temporary or "/")
    return number in _OF_THE_DISK and ours


def disk_reason(path: Path, number: int, written: int = 0, expected: int = 0) -> str:
    """Return why `path` could not be written, by the error number, and the fix.

    `written` and `expected` are numbers of bytes.
    """
    parent, error = path.parent, os.strerror(number)
    blocks = [place for place in (path, *path.parents) if place.exists() and not place.is_dir()]
    if number in _FULL:
        reason = _why_full(parent, number, written, expected)
    elif number == errno.EROFS:
        reason = f"the disk of {parent} is mounted read-only ({error}). Mount it for writing"
    elif number in _FORBIDDEN:
        reason = f"{parent} cannot be written to ({error}). Make it writable"
    elif number == errno.EFBIG:
        reason = (
            f"a file would be larger than this process (ulimit -f) or the disk of {parent} allows. "
            "Raise the limit"
        )
    elif number in _IN_THE_WAY and blocks:
        reason = f"{blocks[0]} is a file, expected a folder. Move it away"
    else:
        reason = f"{parent}: {error}. Check the disk"
    return f"{reason}, or choose another place (checkpoint.output_dir)"


def _why_full(parent: Path, number: int, written: int, expected: int) -> str:
    """Return whether bytes, inodes or the quota are used up, and the fix."""
    left = decimal(shutil.disk_usage(_existing(parent)).free)
    if number == errno.ENOSPC and _lacks_inodes(parent):
        return (
            f"the disk of {parent} has no inodes left: it can hold no more files, though {left} "
            "are left. Remove files that are no longer needed, many small ones rather than a few "
            "large ones"
        )
    needed = f" of about {decimal(expected)}" if expected > written else ""
    wrote = f"{decimal(written)}{needed} were written to {parent}"
    why = f"the disk is full: {wrote}, and {left} are left"
    if number == errno.EDQUOT:
        why = (
            f"your disk quota is used up: {wrote}, and the quota may allow fewer bytes or fewer "
            "files than the disk has left (see `quota`)"
        )
    return f"{why}. Free some space, keep fewer checkpoints (checkpoint.keep_last_n)"


def _lacks_inodes(folder: Path) -> bool:
    disk = os.statvfs(_existing(folder))
    # Some file systems create inodes on demand, and report 0 of 0.
    return disk.f_files > 0 and disk.f_favail == 0 and disk.f_bavail > 0


def _size(folder: Path) -> int:
    return sum(
        os.lstat(os.path.join(place, name)).st_size
        for place, _, files in os.walk(folder)
        for name in files
    )


def _existing(folder: Path) -> Path:
    """Return the folder, or its nearest existing parent."""
    while not folder.is_dir():
        folder = folder.parent
    return folder
