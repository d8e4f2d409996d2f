"""What a user notes on a run: tags, a note, and whether it is archived.

This is all that the viewer writes. It is kept in the run's own folder, apart from what the run
itself writes, so that it moves and is deleted with the run:

    notes.json    {"tags": ["baseline"], "note": "the one of the paper", "archived": false}
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnwise.errors import ConfigError
from turnwise.json_files import read_json_object
from turnwise.whole_files import write_whole

NOTES_FILE = "notes.json"
_TYPES = {"tags": list, "note": str, "archived": bool}
NO_NOTES: Mapping[str, Any] = {"tags": [], "note": "", "archived": False}


class NotesNotSaved(ConfigError):
    """The notes cannot be written into the run's folder."""


def read_notes(folder: Path) -> dict[str, Any]:
    """Return the notes of a run, complete; none if there is no such file."""
    path = folder / NOTES_FILE
    try:
        notes = read_json_object(path)
    except FileNotFoundError:
        notes = {}
    return {**NO_NOTES, **_checked(notes, str(path))}


def change_notes(folder: Path, changes: Any) -> None:
    """Change some of a run's notes.

    A file that cannot be read is not replaced: somebody wrote it. Fields that are not ours stay.
    """
    if not isinstance(changes, dict) or not changes.keys() <= _TYPES.keys():
        raise ConfigError(f"notes got {changes!r:.80}, expected tags, note or archived")
    notes = {**read_notes(folder), **_checked(changes, "notes")}
    text = json.dumps(notes, ensure_ascii=False, indent=1)
    try:
        write_whole(folder / NOTES_FILE, f"{text}\n".encode("utf-8", "replace"))
    except OSError as error:
        raise NotesNotSaved(
            f"the notes cannot be saved in {folder}: {error.strerror}. They belong in the run's "
            "folder, which the user who started `turnwise view` must be able to write."
        ) from error


def _checked(notes: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return checked notes, each tag once; raise `ConfigError` for values of another kind."""
    tags = notes.get("tags", [])
    are_right = all(isinstance(notes.get(name, kind()), kind) for name, kind in _TYPES.items())
    if not are_right or not all(isinstance(tag, str) and tag and "," not in tag for tag in tags):
        raise ConfigError(
            f"{where} got {notes!r:.200}, expected tags: a list of texts without commas, note: "
            "text, archived: true or false"
        )
    if "tags" not in notes:
        return dict(notes)
    return {**notes, "tags": list(dict.fromkeys(" ".join(tag.split()) for tag in tags))}
