"""What the disk refused, in words: which folder, what is wrong, the cure."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from turnwise.errors import CheckpointError

_FULL = {errno.ENOSPC, errno.EDQUOT}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
_IN_THE_WAY = {errno.ENOTDIR, errno.EEXIST}
_OF_THE_DISK = {*_FULL, *_FORBIDDEN, errno.EFBIG, errno.EIO}
_ELSEWHERE = "choose another place (checkpoint.output_dir)"


@contextmanager
def explained(
    path: Path,
    temporary: Path | None = None,
    num_bytes_expected: int = 0,
    *,
    only_disk: bool = False,
) -> Iterator[None]:
    """What the system refuses while `path` is written becomes one error of ours.

    `only_disk`: the work is not ours, so other errors of the system, such as a file that it
    looked for, fly as they are.
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
        reason = _reason(path, number, written, num_bytes_expected)
        raise CheckpointError(
            f"cannot save {path}: {reason}. What was saved before is untouched."
        ) from error


def _error_number(error: Exception) -> int | None:
    if isinstance(error, OSError):
        return error.errno
    # safetensors tells of a full disk only in words.
    return errno.ENOSPC if os.strerror(errno.ENOSPC) in str(error) else None


def _is_about(error: Exception, number: int, temporary: Path | None) -> bool:
    """It is the disk that we write to; not, say, a file elsewhere that may not be read."""
    filename = getattr(error, "filename", None)
    ours = not isinstance(filename, str) or Path(filename).is_relative_to(temporary or "/")
    return number in _OF_THE_DISK and ours


def _reason(path: Path, number: int, written: int, expected: int) -> str:
    parent = path.parent
    if number in _FULL:
        needed = f" of about {_human(expected)}" if expected > written else ""
        return (
            f"the disk is full: {_human(written)}{needed} were written to {parent}, and "
            f"{_human(_free(parent))} are left. Free some space, keep fewer checkpoints "
            f"(checkpoint.keep_last_n), or {_ELSEWHERE}"
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


def _size(folder: Path) -> int:
    return sum(
        os.lstat(os.path.join(place, name)).st_size
        for place, _, files in os.walk(folder)
        for name in files
    )


def _free(folder: Path) -> int:
    while not folder.is_dir():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _human(num_bytes: int) -> str:
    size = float(num_bytes)
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
