"""Files that are written whole or not at all, whatever breaks off while they are written.

The content is put under a hidden name beside the file, forced onto the disk, and renamed:

    .run.json.saving-1f3a    being written; locked by its writer: without a lock, that one is dead
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from contextlib import suppress
from pathlib import Path

_MARK = ".saving-"


def write_whole(path: Path, content: bytes) -> None:
    """Make `path` hold `content`, or leave it as it was. When this returns, it is on the disk.

    What an earlier writer of the same file left when it was killed is removed.
    """
    is_new = not os.path.lexists(path)
    remove_abandoned(path.parent, path.name)
    draft, handle = _open_draft(path)
    try:
        left = memoryview(content)
        while left:  # a full disk may take a part, and only then refuse
            left = left[os.write(handle, left) :]
        os.fsync(handle)
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft)
        raise
    finally:
        os.close(handle)
    if is_new:  # else a power cut leaves the old content or the new
        sync_folder(path.parent)


def _open_draft(path: Path) -> tuple[Path, int]:
    while True:
        draft = path.with_name(f".{path.name}{_MARK}{secrets.token_hex(4)}")
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.path.lexists(draft):
            return draft, handle
        os.close(handle)  # another process took it for abandoned before it was locked


def honour_umask(folder: Path) -> None:
    """Give each file below `folder` the permissions that the umask gives.

    Some libraries, safetensors among them, write files that only their owner may read. (The umask
    itself cannot be read without changing it for all threads, so a file shows what it gives.)
    """
    probe = folder / f".mode-{secrets.token_hex(4)}"
    handle = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        mode = os.fstat(handle).st_mode & 0o777
    finally:
        os.close(handle)
        os.unlink(probe)
    for place, _, names in os.walk(folder):
        for path in (os.path.join(place, name) for name in names):
            if not os.path.islink(path):
                os.chmod(path, mode)


def is_draft(name: str) -> bool:
    """Whether a file's name is that of one which is being written, or was when its writer died."""
    return name.startswith(".") and _MARK in name


def sync_folder(folder: Path) -> None:
    """Force the names in a folder onto the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems keep folders in order by themselves and say EINVAL.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(handle)


def remove_abandoned(folder: Path, name: str = "") -> None:
    """Remove what killed writers left in a folder: of the file of that name, or of any."""
    with suppress(OSError):
        for found in os.listdir(folder):
            if is_draft(found) and found.startswith(f".{name}{_MARK}" if name else "."):
                _remove_unless_held(folder / found)


def _remove_unless_held(draft: Path) -> None:
    with suppress(OSError):
        handle = os.open(draft, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(draft)
        finally:
            os.close(handle)
