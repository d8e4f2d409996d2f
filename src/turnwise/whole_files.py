"""Writes files and folders whole or not at all, even if the process or the machine dies.

The content is written under a hidden name, synced to the disk, and renamed. A rename cannot replace
a folder that has files, so the old one is renamed first; if the process dies in between, the next
access restores it. Next to a file or folder `x` there may be, for a while:

    .x.saving-1f3a      being written and locked by its writer, who is dead without a lock
    .x.replaced         the old folder, until the new one has its name
    .x.removed-77b0     a folder that is being deleted
"""

import errno
import fcntl
import glob
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from turnwise.errors import CheckpointError

PATIENCE_S = 60.0
"""Seconds to wait for another process that renames in the same folder."""
_MARK = ".saving-"
_OF_THE_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO}


# ---- files ----


def write_whole(path: Path, content: bytes) -> None:
    """Replace the content of `path`, or leave it as it was. On return it is on the disk.

    Drafts of earlier writers that were killed are removed.
    """
    is_new = not os.path.lexists(path)
    remove_abandoned(path.parent, path.name)
    while True:
        draft = _draft_path(path)
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.path.lexists(draft):
            break
        os.close(handle)  # another process removed it before it was locked
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


def is_draft(name: str) -> bool:
    """Return whether a name is that of a draft: a file being written, or left by a dead writer."""
    return name.startswith(".") and _MARK in name


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
    for parent, _, names in os.walk(folder):
        for path in (os.path.join(parent, name) for name in names):
            if not os.path.islink(path):
                os.chmod(path, mode)


# ---- folders ----


def write_folder(
    path: Path, fill: Callable[[Path], None], check: Callable[[], None] = lambda: None
) -> None:
    """Replace `path` by a folder with the files that `fill` writes, or leave everything unchanged.

    `check` raises if `path` must not be replaced; it is called before and after the work.
    """
    _make_folder(path.parent)
    with in_order(path.parent, path.name):
        check()
        draft = _draft_path(path)
        os.mkdir(draft)
        lock = os.open(draft, os.O_RDONLY)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    aside = path.with_name(f".{path.name}.replaced")
    try:
        fill(draft)
        honour_umask(draft)
        for folder, _, files in os.walk(draft):
            for file in files:
                sync(Path(folder, file))
            sync(Path(folder))
        with in_order(path.parent, path.name):
            check()
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
    except BaseException:  # an interrupt leaves no draft behind either
        remove(draft)
        raise
    finally:
        _release(lock)


@contextmanager
def in_order(parent: Path, name: str = "") -> Iterator[None]:
    """Hold the lock for renames in `parent`, and clean up after dead writers.

    With `name`, only what was left of the folder of this name is touched.
    """
    handle = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
    deadline = time.monotonic() + PATIENCE_S
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise CheckpointError(
                        f"another process has been busy in {parent} for {PATIENCE_S:.0f} s. Is "
                        "one stopped, or is another run using the same folder?"
                    ) from None
                time.sleep(0.01)
            except OSError:
                break  # a file system without locks: the user must avoid a second writer
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
    finally:
        _release(handle)


def discard(path: Path, name: str | None = None) -> None:
    """Remove a folder atomically: rename it first, then delete its files."""
    doomed = path.with_name(f".{name or path.name}.removed-{secrets.token_hex(4)}")
    os.rename(path, doomed)
    remove(doomed)


def _draft_path(path: Path) -> Path:
    return path.with_name(f".{path.name}{_MARK}{secrets.token_hex(4)}")


def _make_folder(folder: Path) -> None:
    """Create a folder and its parents, synced to the disk."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync(folder.parent)


def _release(handle: int) -> None:
    # Closing alone would leave the lock to forked processes.
    with suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_UN)
    os.close(handle)


# ---- errors of the disk ----


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn an error of the disk while `path` is written into a `CheckpointError` with the reason.

    Errors about files elsewhere, and those that are not of the system, propagate.
    """
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        file = getattr(error, "filename", None)
        if isinstance(error, OSError):
            number = error.errno
        else:  # safetensors reports a full disk only in its message
            number = errno.ENOSPC if os.strerror(errno.ENOSPC) in str(error) else None
        if isinstance(file, str | os.PathLike):
            is_ours = Path(file).is_relative_to(path.parent) or path.is_relative_to(file)
        else:
            is_ours = number in _OF_THE_DISK
        if number is None or not is_ours:
            raise
        raise CheckpointError(
            f"cannot save {path}: {disk_reason(path, number)}. What was saved before is untouched."
        ) from error


def disk_reason(path: Path, number: int) -> str:
    """Return why `path` could not be written, by the error number, and the fix."""
    parent, error = path.parent, os.strerror(number)
    blocks = [part for part in (path, *path.parents) if part.exists() and not part.is_dir()]
    if number in (errno.ENOSPC, errno.EDQUOT):
        disk = os.statvfs(next(folder for folder in path.parents if folder.is_dir()))
        from rich.filesize import decimal  # `write_whole` needs only the standard library

        left = decimal(disk.f_bavail * disk.f_frsize)
        reason = (
            f"the disk is full, of bytes or of files ({error}): {left} are left in {parent}. Free "
            "some space, keep fewer checkpoints (checkpoint.keep_last_n)"
        )
    elif number in (errno.ENOTDIR, errno.EEXIST) and blocks:
        reason = f"{blocks[0]} is a file, expected a folder. Move it away"
    else:
        reason = f"{parent} cannot be written to ({error}). Make it writable"
    return f"{reason}, or choose another place (checkpoint.output_dir)"
