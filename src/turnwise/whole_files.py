"""Writes files whole or not at all, even if the process or the machine dies.

The content is written under a hidden name next to the file, synced to the disk, and renamed:

    .run.json.saving-1f3a    being written, and locked by its writer; unlocked, the writer is dead
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path

_MARK = ".saving-"


def write_whole(path: Path, content: bytes) -> None:
    """Replace the content of `path`, or leave it as it was. On return it is on the disk.

    Drafts of earlier writers that were killed are removed.
    """
    is_new = not os.path.lexists(path)
    remove_abandoned(path.parent, path.name)
    draft, handle = _open_draft(path)
    try:
        left = memoryview(content)
        while left:  # a full disk may accept a part first
            left = left[os.write(handle, left) :]
        os.fsync(handle)
        os.replace(draft, path)
    except BaseException:  # an interrupt leaves no draft behind either
        remove(draft)
        raise
    finally:
        os.close(handle)
    if is_new:  # otherwise a power cut leaves the old or the new content
        sync(path.parent)


def _open_draft(path: Path) -> tuple[Path, int]:
    while True:
        draft = draft_path(path)
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.path.lexists(draft):
            return draft, handle
        os.close(handle)  # another process removed it before it was locked


def draft_path(path: Path) -> Path:
    """Return a new name for a draft of a file or a folder."""
    return path.with_name(f".{path.name}{_MARK}{secrets.token_hex(4)}")


def honour_umask(folder: Path) -> None:
    """Give each file below `folder` the permissions of the umask.

    Some libraries, such as safetensors, write files that only their owner may read. The umask
    cannot be read without changing it for all threads, so a probe file shows it.
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
    """Return whether a name is that of a draft: a file being written, or left by a dead writer."""
    return name.startswith(".") and _MARK in name


def sync(path: Path) -> None:
    """Sync a file, or the entries of a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems sync folders themselves and return EINVAL.
        if error.errno != errno.EINVAL or not path.is_dir():
            raise
    finally:
        os.close(handle)


def remove_abandoned(folder: Path, name: str = "") -> None:
    """Remove the drafts of killed writers in a folder: of one file or folder, or of all."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for draft in names:
        if is_draft(draft) and draft.startswith(f".{name}{_MARK}" if name else "."):
            with suppress(OSError):  # a living writer holds the lock
                handle = os.open(folder / draft, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove(folder / draft)
                finally:
                    os.close(handle)


def remove(path: Path) -> None:
    """Remove a file or a folder, as far as that is allowed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()
