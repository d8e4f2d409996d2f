"""Writes folders atomically: a folder exists complete or not at all.

A folder is written under a hidden name and renamed when it is complete. A rename cannot replace a
folder that has files, so the old one is renamed first; if the process dies in between, the next
access restores it. Next to a folder `x` there may be, for a while:

    .x.saving-1f3a      being written and locked by its writer, who is dead without a lock
    .x.replaced         the old `x`, until the new one has its name
    .x.removed-77b0     being deleted
"""

from __future__ import annotations

import fcntl
import glob
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from turnwise.errors import CheckpointError
from turnwise.runs.disk_errors import explained
from turnwise.whole_files import draft_path, honour_umask, remove, remove_abandoned, sync

PATIENCE_S = 60.0
"""Seconds to wait for another process that renames in the same folder."""


@contextmanager
def in_order(parent: Path, name: str = "") -> Iterator[None]:
    """Hold the lock for renames in `parent`, and clean up after dead writers.

    With `name`, only what was left of the folder of this name is touched.
    """
    with _locked(parent):
        pattern = glob.escape(name) or "*"
        for aside in parent.glob(f".{pattern}.replaced"):
            path = parent / aside.name[1:].removesuffix(".replaced")
            with suppress(OSError):  # a reader may have no permission
                if os.path.lexists(path):
                    discard(aside, path.name)
                else:
                    os.rename(aside, path)
        remove_abandoned(parent, name)
        for doomed in parent.glob(f".{pattern}.removed-*"):
            remove(doomed)
        yield


def write_folder(
    path: Path,
    fill: Callable[[Path], None],
    seal: Callable[[Path], Path],
    *,
    name: str = "",
    may_replace: Callable[[], None] = lambda: None,
) -> None:
    """Replace `path` by a folder with the files that `fill` writes, or leave everything unchanged.

    `seal` adds and returns a last file, after all others are synced to the disk. Exceptions of
    `fill` propagate, except for errors of the disk, which become a `CheckpointError`.
    `may_replace` raises if `path` must not be replaced; it is called before and after the work.
    """
    with explained(path):
        _make_folder(path.parent)
        with in_order(path.parent, name):
            may_replace()
            draft = draft_path(path)
            os.mkdir(draft)
            lock = os.open(draft, os.O_RDONLY)
            with suppress(OSError):  # a file system without locks
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        with explained(path, only_below=draft):
            fill(draft)
        with explained(path):
            honour_umask(draft)
            for folder, _, files in os.walk(draft):
                for file in files:
                    sync(Path(folder, file))
                sync(Path(folder))
            sync(seal(draft))
            sync(draft)
            with in_order(path.parent, name):
                may_replace()
                _take_name(draft, path)
    except BaseException:  # an interrupt leaves no draft behind either
        remove(draft)
        raise
    finally:
        _release(lock)


def discard(path: Path, name: str | None = None) -> None:
    """Remove a folder atomically: rename it first, then delete its files."""
    doomed = path.with_name(f".{name or path.name}.removed-{secrets.token_hex(4)}")
    os.rename(path, doomed)
    remove(doomed)


def _make_folder(folder: Path) -> None:
    """Create a folder and its parents, synced to the disk."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync(folder.parent)


def _take_name(draft: Path, path: Path) -> None:
    aside = path.with_name(f".{path.name}.replaced")
    replaces = os.path.lexists(path)
    try:
        if replaces:
            os.rename(path, aside)
        os.rename(draft, path)
    except BaseException:  # an interrupt between the two renames
        if replaces and not os.path.lexists(path):
            os.rename(aside, path)
        raise
    sync(path.parent)
    if replaces:
        with suppress(OSError):  # the next `in_order` tries again
            discard(aside, path.name)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    deadline = time.monotonic() + PATIENCE_S
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise CheckpointError(
                        f"another process has been busy in {folder} for {PATIENCE_S:.0f} s. Is "
                        "one stopped, or is another run using the same folder?"
                    ) from None
                time.sleep(0.01)
            except OSError:
                break  # a file system without locks: the user must avoid a second writer
        yield
    finally:
        _release(handle)


def _release(handle: int) -> None:
    # Closing alone would leave the lock to forked processes.
    with suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_UN)
    os.close(handle)
