"""Explains errors of the disk: which folder, what is wrong, and the fix."""

from __future__ import annotations

import errno
import os
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
def explained(path: Path, *, only_below: Path | None = None) -> Iterator[None]:
    """Turn an `OSError` while `path` is written into a `CheckpointError` with the reason.

    With `only_below`, errors that are not about the disk of that folder, such as a missing file or
    another file that may not be read, propagate.
    """
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        if isinstance(error, OSError):
            number = error.errno
        else:  # safetensors reports a full disk only in its message
            number = errno.ENOSPC if os.strerror(errno.ENOSPC) in str(error) else None
        if number is None:
            raise
        if only_below is not None:
            file = getattr(error, "filename", None)
            is_below = not isinstance(file, str) or Path(file).is_relative_to(only_below)
            if number not in _OF_THE_DISK or not is_below:
                raise
        raise CheckpointError(
            f"cannot save {path}: {disk_reason(path, number)}. What was saved before is untouched."
        ) from error


def disk_reason(path: Path, number: int) -> str:
    """Return why `path` could not be written, by the error number, and the fix."""
    parent, error = path.parent, os.strerror(number)
    folder = next(folder for folder in (parent, *parent.parents) if folder.is_dir())
    disk = os.statvfs(folder)
    left = decimal(disk.f_bavail * disk.f_frsize)
    blocks = [part for part in (path, *path.parents) if part.exists() and not part.is_dir()]
    # Some file systems create inodes on demand, and report 0 of 0.
    if number == errno.ENOSPC and disk.f_files > 0 == disk.f_favail and disk.f_bavail > 0:
        reason = (
            f"the disk of {parent} has no inodes left: it can hold no more files, though {left} "
            "are left. Remove files that are no longer needed"
        )
    elif number in _FULL:
        reason = f"the disk is full: {left} are left in {parent}"
        if number == errno.EDQUOT:
            reason = "your disk quota is used up, of bytes or of files (see `quota`)"
        reason += ". Free some space, keep fewer checkpoints (checkpoint.keep_last_n)"
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
