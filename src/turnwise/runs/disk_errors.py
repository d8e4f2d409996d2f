"""Explains errors of the disk: which folder, what is wrong, and the fix."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from turnwise.errors import CheckpointError

_FULL = {errno.ENOSPC, errno.EDQUOT}
_FORBIDDEN = {errno.EACCES, errno.EPERM}
_IN_THE_WAY = {errno.ENOTDIR, errno.EEXIST}
_OF_THE_DISK = {*_FULL, *_FORBIDDEN, errno.EROFS, errno.EFBIG, errno.EIO}
_ELSEWHERE = "choose another place (checkpoint.output_dir)"


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
    parent = path.parent
    if number in _FULL:
        return _why_full(parent, number, written, expected)
    if number == errno.EROFS:
        return (
            f"the disk of {parent} is mounted read-only ({os.strerror(number)}). Mount it for "
            f"writing, or {_ELSEWHERE}"
        )
    if number in _FORBIDDEN:
        return (
            f"{parent} cannot be written to ({os.strerror(number)}). Make it writable, "
            f"or {_ELSEWHERE}"
        )
    if number == errno.EFBIG:
        return (
            f"a file would be larger than this process (ulimit -f) or the disk of {parent} allows. "
            f"Raise the limit, or {_ELSEWHERE}"
        )
    blocks = [place for place in (path, *path.parents) if place.exists() and not place.is_dir()]
    if number in _IN_THE_WAY and blocks:
        return f"{blocks[0]} is a file, expected a folder. Move it away, or {_ELSEWHERE}"
    return f"{parent}: {os.strerror(number)}. Check the disk, or {_ELSEWHERE}"


def _why_full(parent: Path, number: int, written: int, expected: int) -> str:
    """Return whether bytes, inodes or the quota are used up, and the fix."""
    if number == errno.ENOSPC and _lacks_inodes(parent):
        return (
            f"the disk of {parent} has no inodes left: it can hold no more files, though "
            f"{_human(_free(parent))} are left. Remove files that are no longer needed, many "
            f"small ones rather than a few large ones, or {_ELSEWHERE}"
        )
    needed = f" of about {_human(expected)}" if expected > written else ""
    wrote = f"{_human(written)}{needed} were written to {parent}"
    if number == errno.EDQUOT:
        return (
            f"your disk quota is used up: {wrote}, and the quota may allow fewer bytes or fewer "
            f"files than the disk has left (see `quota`). Free some space, keep fewer checkpoints "
            f"(checkpoint.keep_last_n), or {_ELSEWHERE}"
        )
    return (
        f"the disk is full: {wrote}, and {_human(_free(parent))} are left. Free some space, keep "
        f"fewer checkpoints (checkpoint.keep_last_n), or {_ELSEWHERE}"
    )


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


def _free(folder: Path) -> int:
    return shutil.disk_usage(_existing(folder)).free


def _existing(folder: Path) -> Path:
    """Return the folder, or its nearest existing parent."""
    while not folder.is_dir():
        folder = folder.parent
    return folder


def _human(num_bytes: int) -> str:
    size = float(num_bytes)
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
