"""Keeps the index of episodes current: one thread polls for changes, one adds new episodes."""

from __future__ import annotations

import hashlib
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from turnwise.runs.episode_store import EpisodeStore
from turnwise.view.index import Connection, IndexBroken
from turnwise.view.library import Library
from turnwise.view.run_files import MAX_FILE_BYTES, FileKey, FileStamp, describe
from turnwise.view.runs import ViewedRun
from turnwise.view.summaries import COLUMNS, Summary, clean, summarise

_LOG = logging.getLogger("turnwise")

POLL_SECONDS = 1.0
_FIND_SHARE = 20
"""The search for runs in a large tree of folders may take 1 / this of the time."""
_POLL_SHARE = 3
_DOCTOR_SECONDS = 0.2
_CONFIG_SECONDS = 0.5
"""Seconds of each round for reading settings, only to check that they can be read."""
_FIRST_BATCH_SECONDS = 0.05
"""Seconds of the first batch of a run that is not indexed yet: a user may wait for it."""
_BATCH_SECONDS = 0.4
"""Seconds of a batch of small files; others can read and write between batches."""


class Watcher:
    """Keeps a library current, and sends a notification when something changed."""

    def __init__(self, library: Library, on_change: Callable[[], None]) -> None:
        self._library = library
        self._on_change = on_change
        self._stop = threading.Event()
        self._work = threading.Event()
        self._next_find = 0.0
        self._threads = [
            threading.Thread(target=self._poll, name="turnwise-watch", daemon=True),
            threading.Thread(target=self._index, name="turnwise-index", daemon=True),
        ]

    def start(self) -> None:
        self._work.set()  # so that the first page does not wait for the first poll
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._work.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=5.0)

    def _poll(self) -> None:
        pause = POLL_SECONDS
        while not self._stop.wait(pause):
            started = time.monotonic()
            try:
                changed = self._find()
                for run in self._library.runs:
                    changed |= _refresh(run, started + _CONFIG_SECONDS)
                self._work.set()
                if changed:
                    self._on_change()
            except Exception as error:
                _LOG.error("polling for changes failed and is tried again: %s", describe(error))
            # Polling thousands of runs takes long; most of the time belongs to the page's requests.
            pause = max(POLL_SECONDS, _POLL_SHARE * (time.monotonic() - started))

    def _find(self) -> bool:
        """Look for new runs; less often where that takes long."""
        started = time.monotonic()
        if started < self._next_find:
            return False
        changed = self._library.find()
        took = time.monotonic() - started
        self._next_find = started + _FIND_SHARE * took
        return changed

    def _index(self) -> None:
        while not self._stop.is_set():
            self._work.wait()
            self._work.clear()
            has_more = True
            while has_more:
                # Runs take turns by batches, so that one in training does not wait for an old one.
                has_more = False
                for run in self._library.runs:
                    has_more |= not self._stop.is_set() and self._index_batch(run)

    def _index_batch(self, run: ViewedRun) -> bool:
        """Index one batch; return whether there was anything to do."""
        if run.is_indexed or (not run.episode_files and not run.index.path.exists()):
            return False
        try:
            for _ in update_index(run):
                self._on_change()
                return True
        except (sqlite3.Error, IndexBroken, OSError) as error:
            _LOG.debug("the index of %s: %s; it is tried again", run.key, error)
        except Exception as error:
            if run.note_failure(error):
                self._on_change()
        return False


def _refresh(run: ViewedRun, deadline: float) -> bool:
    """Return whether a run changed; an error in one run does not affect the others."""
    try:
        changed = run.refresh() | run.metrics.examine(_DOCTOR_SECONDS)
        if time.monotonic() < deadline:
            run.config()
        return changed
    except Exception as error:
        return run.note_failure(error)


def update_index(run: ViewedRun) -> Iterator[None]:
    """Bring the index up to the files, the newest steps first; yield after each batch."""
    files = dict(run.episode_files)
    with run.index.connection() as db:
        known = stamps(db)
        run.note_indexed(db)
    stale = [key for key in known if key not in files]
    fresh = [key for key in files if known.get(key) != stamp_text(files[key])]
    run.num_indexed = len(files) - len(fresh)
    fresh.sort(key=lambda key: (-key[1], key[0] != "train"))
    if stale:
        with run.index.writing() as db:
            for key in stale:
                remove_file(db, key)
            run.note_indexed(db)
        yield
    while fresh:
        is_first = run.num_indexed == 0
        deadline = time.monotonic() + (_FIRST_BATCH_SECONDS if is_first else _BATCH_SECONDS)
        with run.index.writing() as db:
            while fresh and time.monotonic() < deadline:
                key = fresh.pop(0)
                if not has_file(db, key, files[key]):
                    _add(db, run, key)
            run.note_indexed(db)
        run.num_indexed = len(files) - len(fresh)
        yield
    run.mark_indexed(files)


def _add(db: Connection, run: ViewedRun, key: FileKey) -> None:
    stamp = run.episode_files.get(key)
    if stamp is None:  # the file was removed
        return
    store = EpisodeStore(run.files.folder.episodes, 0, MAX_FILE_BYTES)
    try:
        summaries = summarise(*store.read_text(key[1], key[0]))
    except Exception as error:  # the file may hold anything; the page shows the reason
        add_file(db, key, stamp, [], clean(describe(error)[:500]))
    else:
        add_file(db, key, stamp, summaries)


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
