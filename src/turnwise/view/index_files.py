"""Adds files of episodes to the index, and removes them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from turnwise.view.index import Connection
from turnwise.view.run_files import FileKey, FileStamp
from turnwise.view.summaries import COLUMNS, Summary


def stamps(db: Connection) -> dict[FileKey, str]:
    """Return the indexed files with the stamps that they had."""
    rows = db.execute("SELECT kind, step, stamp FROM files")
    return {(kind, step): stamp for kind, step, stamp in rows}


def stamp_text(stamp: FileStamp) -> str:
    return "-".join(map(str, stamp))


def has_file(db: Connection, key: FileKey, stamp: FileStamp) -> bool:
    found = db.execute("SELECT stamp FROM files WHERE kind = ? AND step = ?", key).fetchone()
    return found is not None and found[0] == stamp_text(stamp)


def add_file(
    db: Connection,
    key: FileKey,
    stamp: FileStamp,
    summaries: Sequence[Summary],
    problem: str | None = None,
) -> None:
    """Add the episodes of a file, replacing what the index had of it."""
    remove_file(db, key)
    db.execute("INSERT INTO files VALUES (?, ?, ?, ?)", (*key, stamp_text(stamp), problem))
    (first,) = db.execute("SELECT coalesce(max(id), 0) + 1 FROM episodes").fetchone()
    marks = ", ".join("?" * (3 + len(COLUMNS)))
    db.executemany(
        f"INSERT INTO episodes VALUES ({marks})",
        ((first + n, *key, *summary.row) for n, summary in enumerate(summaries)),
    )
    db.executemany(
        "INSERT INTO shown VALUES (?, ?, ?, ?)",
        (
            (first + n, s.task, s.answer, "\n".join(sorted(s.tools)))
            for n, s in enumerate(summaries)
        ),
    )
    db.executemany(
        "INSERT INTO called VALUES (?, ?)",
        ((tool, first + n) for n, summary in enumerate(summaries) for tool in summary.tools),
    )
    ids = _text_ids(db, {text for summary in summaries for text in summary.texts})
    db.executemany(
        "INSERT OR IGNORE INTO uses VALUES (?, ?, ?)",
        (
            (ids[text], first + n, part)
            for n, summary in enumerate(summaries)
            for text, part in summary.texts.items()
        ),
    )


def remove_file(db: Connection, key: FileKey) -> None:
    """Remove the episodes of a file, and the texts that no other episode uses."""
    where = "SELECT id FROM episodes WHERE kind = ? AND step = ?"
    texts = db.execute(f"SELECT DISTINCT text FROM uses WHERE episode IN ({where})", key).fetchall()
    for table, column in (("uses", "episode"), ("called", "episode"), ("shown", "id")):
        db.execute(f"DELETE FROM {table} WHERE {column} IN ({where})", key)
    db.execute("DELETE FROM episodes WHERE kind = ? AND step = ?", key)
    db.execute("DELETE FROM files WHERE kind = ? AND step = ?", key)
    for (text,) in texts:
        if db.execute("SELECT 1 FROM uses WHERE text = ? LIMIT 1", (text,)).fetchone() is None:
            db.execute(
                "INSERT INTO words(words, rowid, text) SELECT 'delete', id, text FROM texts "
                "WHERE id = ?",
                (text,),
            )
            db.execute("DELETE FROM texts WHERE id = ?", (text,))


def _text_ids(db: Connection, texts: Iterable[str]) -> Mapping[str, int]:
    ids: dict[str, int] = {}
    for text in texts:
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        key = int.from_bytes(digest) >> 1
        found = db.execute("SELECT id FROM texts WHERE hash = ?", (key,)).fetchone()
        if found is None:
            number = db.execute("INSERT INTO texts VALUES (NULL, ?, ?)", (key, text)).lastrowid
            assert number is not None
            db.execute("INSERT INTO words(rowid, text) VALUES (?, ?)", (number, text))
            ids[text] = number
        else:
            ids[text] = found[0]
    return ids
