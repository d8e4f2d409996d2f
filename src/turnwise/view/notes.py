"""What a user notes on a run: tags, a note, and whether it is archived.

This is all that the viewer writes. It is kept in the run's own folder, apart from what the run
itself writes, so that it moves and is deleted with the run:

    notes.json    {"tags": ["baseline"], "note": "the one of the paper", "archived": false}
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnwise.bounded_files import read_json_object
from turnwise.errors import ConfigError
from turnwise.whole_files import write_whole

NOTES_FILE = "notes.json"
MAX_BYTES = 2**16
_MAX_TAGS = 32
_MAX_TAG = 64
_MAX_NOTE = 10_000
NO_NOTES: Mapping[str, Any] = {"tags": [], "note": "", "archived": False}


class NotesNotSaved(ConfigError):
    """The notes cannot be written into the run's folder."""


def read_notes(path: Path) -> dict[str, Any]:
    """Return the notes in a file, complete; none if there is no such file."""
    try:
        notes = read_json_object(path, MAX_BYTES)
    except FileNotFoundError:
        notes = {}
    return {**NO_NOTES, **_checked(notes, str(path))}


def change_notes(folder: Path, changes: Mapping[str, Any]) -> None:
    """Change some of a run's notes.

    A file that cannot be read is not replaced: somebody wrote it. Fields that are not ours stay.
    """
    unknown = sorted(set(changes) - set(NO_NOTES))
    if unknown or not changes:
        raise ConfigError(
            f"notes got {', '.join(unknown)[:80] or 'nothing'}, expected tags, note or archived"
        )
    path = folder / NOTES_FILE
    if path.is_symlink():
        raise NotesNotSaved(f"{path} is a link, which is not followed. Replace it by a plain file.")
    notes = {**read_notes(path), **_checked(changes, "notes")}
    text = json.dumps(notes, ensure_ascii=False, indent=1)
    try:
        write_whole(path, f"{text}\n".encode("utf-8", "replace"))
    except OSError as error:
        raise NotesNotSaved(
            f"the notes cannot be saved in {folder}: {os.strerror(error.errno or 0)}. They belong "
            "in the run's folder, which the user who started `turnwise view` must be able to write."
        ) from error


def _checked(notes: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return checked notes, each tag once; raise `ConfigError` for values of another kind."""
    note, archived = notes.get("note", ""), notes.get("archived", False)
    if not isinstance(note, str) or len(note) > _MAX_NOTE:
        raise ConfigError(
            f"{where}: note got {note!r:.80}, expected text of at most {_MAX_NOTE:,} characters"
        )
    if not isinstance(archived, bool):
        raise ConfigError(f"{where}: archived got {archived!r:.80}, expected true or false")
    if "tags" not in notes:
        return dict(notes)
    tags = notes["tags"]
    is_list = isinstance(tags, list) and all(isinstance(tag, str) for tag in tags)
    words = list(dict.fromkeys(" ".join(tag.split()) for tag in tags)) if is_list else [""]
    if len(words) > _MAX_TAGS or not all(0 < len(w) <= _MAX_TAG and "," not in w for w in words):
        raise ConfigError(
            f"{where}: tags got {tags!r:.80}, expected a list of at most {_MAX_TAGS} texts without "
            f"commas, each of 1 to {_MAX_TAG} characters"
        )
    return {**notes, "tags": words}
