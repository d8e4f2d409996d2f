"""Folders in the user's cache that are created once, atomically."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

from turnwise.errors import ConfigError
from turnwise.whole_files import honour_umask


def cached_folder(name: str, fill: Callable[[Path], None]) -> Path:
    """Return the folder of that name, filled by `fill` if it does not exist.

    Of several processes at once, the first to finish wins, and all use its folder.
    """
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "turnwise" / "models" / name
    if folder.is_dir():
        return folder
    draft: Path | None = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = folder.with_name(f".{name}.{secrets.token_hex(4)}")
        draft.mkdir()  # not mkdtemp, whose folders only their owner can read
        fill(draft)
        honour_umask(draft)
        draft.rename(folder)
    except OSError as error:
        if not folder.is_dir():  # otherwise another process was first
            raise ConfigError(
                f"cannot make the folder {folder}: {error}. "
                "XDG_CACHE_HOME names another place for caches."
            ) from error
    finally:
        if draft is not None:
            shutil.rmtree(draft, ignore_errors=True)
    return folder
