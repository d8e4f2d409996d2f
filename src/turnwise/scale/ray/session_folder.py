"""`SessionFolder`: Ray's temporary folder, which is removed even if its driver was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

_PREFIX = "turnwise-ray-"
_LOCK = "turnwise.lock"
_REMOVE_SECONDS = 5.0

# Short, because the paths of the sockets in it must fit into 107 characters.
PARENT = Path("/tmp")


class SessionFolder:
    """A new folder for Ray's sockets and logs, locked for as long as this process lives.

    The kernel releases the lock however the process ends, and it also holds between containers
    that share the parent folder, where a process id would mean nothing.
    """

    def __init__(self, parent: Path = PARENT) -> None:
        remove_stale_folders(parent)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        self._owner = os.getpid()
        # Locked before it has its name: nobody ever finds a live driver's lock file unlocked.
        draft = self.path / f"{_LOCK}.new"
        self._lock = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        draft.rename(self.path / _LOCK)

    def remove(self) -> None:
        """Remove the folder. It may be called twice; in a forked process it does nothing."""
        if self._lock < 0 or os.getpid() != self._owner:
            return
        _remove(self.path)
        os.close(self._lock)
        self._lock = -1


def remove_stale_folders(parent: Path = PARENT) -> list[Path]:
    """Remove the session folders whose drivers are gone, and return them.

    Only folders with our prefix and our lock file, both owned by this user, and with no lock held.
    """
    removed = []
    for folder in sorted(parent.glob(f"{_PREFIX}*")):
        lock = _open_lock(folder)
        if lock is None:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue  # its driver is running
        else:
            _remove(folder)
            removed.append(folder)
        finally:
            os.close(lock)
    return removed


def _open_lock(folder: Path) -> int | None:
    """The lock file of a folder that this user made here; None for anything else."""
    try:
        of_folder = folder.lstat()
        if not stat.S_ISDIR(of_folder.st_mode) or of_folder.st_uid != os.getuid():
            return None
        # Other users may write into Ray's folder: no link is followed, no pipe is waited for.
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    of_lock = os.fstat(lock)
    if stat.S_ISREG(of_lock.st_mode) and of_lock.st_uid == os.getuid():
        return lock
    os.close(lock)
    return None


def _remove(folder: Path) -> None:
    """Remove a folder in which processes that are about to end may still be writing."""
    deadline = time.monotonic() + _REMOVE_SECONDS
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists() or time.monotonic() > deadline:
            return
        time.sleep(0.05)
