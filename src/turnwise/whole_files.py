"""Writes files and folders whole or not at all, even if the process or the machine dies.

The content is written under a hidden name, synced to the disk, and renamed. A rename cannot replace
a folder that has files, so the old one is renamed first; if the process dies in between, `restore`
brings it back. Next to a file or folder `x` there may be, for a while or after a kill:

    .x.saving-1f3a      being written
    .x.replaced         the old folder, until the new one has its name
    .x.removed-77b0     a folder that is being deleted
"""

import errno
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from turnwise.errors import CheckpointError, TurnwiseError

_DRAFT = re.compile(r"\..+\.(saving|removed)-[0-9a-f]+")


def write_whole(path: Path, content: bytes) -> None:
    """Replace the content of `path`, or leave it as it was. On return it is on the disk."""
    is_new = not os.path.lexists(path)
    draft = _hidden(path, "saving")
    try:
        with open(draft, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        remove(draft)  # there is none after the rename
    if is_new:  # otherwise a power cut leaves the old or the new content
        sync(path.parent)


def write_folder(path: Path, fill: Callable[[Path], None], check: Callable[[], None]) -> None:
    """Replace `path` by a folder with the files that `fill` writes, or leave everything unchanged.

    `check` raises if `path` must not be replaced; it is called before and after the work.
    """
    check()
    _make_folder(path.parent)
    restore(path)
    draft, old = _hidden(path, "saving"), _old(path)
    draft.mkdir()
    try:
        fill(draft)
        honour_umask(draft)
        for folder, _, files in os.walk(draft):
            for file in files:
                sync(Path(folder, file))
            sync(Path(folder))
        check()
        replaces = os.path.lexists(path)
        if replaces:
            os.rename(path, old)
        os.rename(draft, path)
    except BaseException:  # also an interrupt between the two renames
        restore(path)
        remove(draft)
        raise
    sync(path.parent)
    if replaces:
        with suppress(OSError):  # a reader's `restore` may be removing it, too
            discard(old)


def restore(path: Path) -> None:
    """Bring back the folder that a killed `write_folder` was about to replace."""
    old = _old(path)
    if old.exists():
        with suppress(OSError):  # a reader may have no permission
            discard(old) if os.path.lexists(path) else os.rename(old, path)


def is_draft(name: str) -> bool:
    """Return whether a name is that of something being written or deleted, or left of it."""
    return _DRAFT.fullmatch(name) is not None


def remove_abandoned(folder: Path, name: str | None = None) -> None:
    """Remove what killed writers left in a folder, or of `name` in it; no other may be at work."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if is_draft(path.name) and name in (None, path.name[1:].rpartition(".")[0]):
            remove(path)


def discard(path: Path) -> None:
    """Remove a folder atomically: rename it first, then delete its files."""
    hidden = _hidden(path, "removed")
    os.rename(path, hidden)
    remove(hidden)


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
    probe = _hidden(folder / "mode", "saving")
    probe.touch()
    mode = probe.stat().st_mode & 0o777
    probe.unlink()
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(mode)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn an error of the disk while `path` is written into a `CheckpointError` with the fix."""
    try:
        yield
    except TurnwiseError:  # some are errors of the system too
        raise
    except OSError as error:
        fix = "Make it writable"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            fix = "Free some space, keep fewer checkpoints (checkpoint.keep_last_n)"
        raise CheckpointError(
            f"cannot save {path}: {error.strerror or error}. {fix}, or choose another place "
            "(checkpoint.output_dir). What was saved before is untouched."
        ) from error


def _hidden(path: Path, purpose: str) -> Path:
    return path.with_name(f".{path.name}.{purpose}-{secrets.token_hex(4)}")


def _old(path: Path) -> Path:
    return path.with_name(f".{path.name}.replaced")


def _make_folder(folder: Path) -> None:
    """Create a folder and its parents, synced to the disk."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync(folder.parent)
