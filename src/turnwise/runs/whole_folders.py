"""Writes folders atomically: a folder exists complete or not at all.

A folder is written under a hidden name and renamed when it is complete. A rename cannot replace a
folder that has files, so the old one is renamed first; if the process dies in between, the next
access restores it. Next to a folder `x` there may be, for a while:

    .x.saving-HOST-1f3a    being written and locked by its writer, who is dead without a lock
    .x.replaced            the old `x`, until the new one has its name
    .x.removed-77b0        being deleted
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from turnwise.errors import CheckpointError
from turnwise.runs.disk_errors import explained
from turnwise.whole_files import honour_umask, sync

PATIENCE_S = 60.0
"""Seconds to wait for another process that renames in the same folder."""
STALE_S = 3600.0
"""Locks may not work between hosts of a network file system: a draft of another host that changed
within this time counts as alive."""


@contextmanager
def in_order(parent: Path, names: str = "*") -> Iterator[None]:
    """Hold the lock for renames in `parent`, and clean up after dead writers.

    `names` is a glob pattern: only the drafts of folders with these names are touched.
    """
    with _locked(parent):
        for aside in parent.glob(f".{names}.replaced"):
            place = parent / aside.name[1:].removesuffix(".replaced")
            with suppress(OSError):  # a reader may have no permission
                if os.path.lexists(place):
                    discard(aside, place.name)
                else:
                    os.rename(aside, place)
        for part in parent.glob(f".{names}.saving-*"):
            if _is_abandoned(part):
                _remove(part)
        for part in parent.glob(f".{names}.removed-*"):
            _remove(part)
        yield


def write_folder(
    path: Path,
    fill: Callable[[Path], None],
    seal: Callable[[Path], Path],
    *,
    names: str,
    may_replace: Callable[[], None] = lambda: None,
    num_bytes_expected: int = 0,
) -> None:
    """Replace `path` by a folder with the files that `fill` writes, or leave everything unchanged.

    `seal` adds and returns a last file, after all others are synced to the disk. Exceptions of
    `fill` propagate, except for errors of the disk, which become a `CheckpointError`.
    `may_replace` raises if `path` must not be replaced; it is called before and after the work.
    """
    with explained(path):
        make_folder(path.parent)
        with in_order(path.parent, names):
            may_replace()
            temporary = _beside(path, f"saving-{_host()}")
            os.mkdir(temporary)
            lock = os.open(temporary, os.O_RDONLY)
            with suppress(OSError):  # a file system without locks
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        with explained(path, temporary, num_bytes_expected, only_disk=True):
            fill(temporary)
        with explained(path, temporary, num_bytes_expected):
            honour_umask(temporary)
            _sync_tree(temporary)
            sync(seal(temporary))
            sync(temporary)
            with in_order(path.parent, names):
                may_replace()
                _take_place(temporary, path)
    except BaseException:
        _remove(temporary)
        raise
    finally:
        _release(lock)


def write_file(path: Path, content: bytes) -> None:
    """Write a single file atomically; the caller holds `in_order`, which removes its drafts."""
    temporary = _beside(path, f"saving-{_host()}")
    try:
        temporary.write_bytes(content)
        sync(temporary)
        os.replace(temporary, path)
    except BaseException:
        _remove(temporary)
        raise
    sync(path.parent)


def discard(path: Path, name: str | None = None) -> None:
    """Remove a folder atomically: rename it first, then delete its files."""
    doomed = _beside(path.with_name(name or path.name), "removed")
    os.rename(path, doomed)
    _remove(doomed)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, synced to the disk."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync(folder.parent)


def _sync_tree(folder: Path) -> None:
    for place, _, files in os.walk(folder):
        for name in files:
            sync(Path(place, name))
        sync(Path(place))


def _take_place(temporary: Path, path: Path) -> None:
    aside = path.with_name(f".{path.name}.replaced")
    replaces = os.path.lexists(path)
    try:
        if replaces:
            os.rename(path, aside)
        os.rename(temporary, path)
    except BaseException:
        if replaces and not os.path.lexists(path):
            os.rename(aside, path)
        raise
    sync(path.parent)
    if replaces:
        with suppress(OSError):  # the next `in_order` tries again
            discard(aside, path.name)


def _beside(path: Path, role: str) -> Path:
    return path.with_name(f".{path.name}.{role}-{secrets.token_hex(4)}")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while _is_busy(handle):
            if time.monotonic() > deadline:
                raise CheckpointError(
                    f"another process has been busy in {folder} for {PATIENCE_S:.0f} s. Is one "
                    "stopped, or is another run using the same folder?"
                )
            time.sleep(0.01)
        yield
    finally:
        _release(handle)


def _is_busy(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # a file system without locks: the user must avoid a second writer
    return False


def _release(handle: int) -> None:
    # Closing alone would leave the lock to forked processes.
    with suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_UN)
    os.close(handle)


def _is_abandoned(path: Path) -> bool:
    """Return whether the writer of a draft is dead; False if the file system has no locks."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return f".saving-{_host()}-" in path.name or time.time() - _last_touched(path) > STALE_S
    except OSError:
        return False
    finally:
        os.close(handle)


def _last_touched(folder: Path) -> float:
    return max(
        os.lstat(os.path.join(place, name)).st_mtime
        for place, _, files in os.walk(folder)
        for name in (".", *files)
    )


def _host() -> str:
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]
