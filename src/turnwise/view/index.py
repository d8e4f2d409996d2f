"""The index of one run's episodes: a SQLite database in the user's cache folder.

It can be thrown away at any time: the run's own files are the source. Two viewers may share it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import queue
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from turnwise.view.summaries import COLUMNS

_LOG = logging.getLogger("turnwise")

VERSION = 4
"""The version of the tables below. An index of another version is rebuilt."""
_APPLICATION = 0x7475726E
_DAYS_KEPT = 60
_BUSY_SECONDS = 15.0
_MOST_IDLE = 4
"""Idle connections kept per index for the next request: each has a cache of its own."""
_MOST_IDLE_IN_ALL = 64
"""Idle connections of all runs: each is three open files, and a process may have 1,024."""
_IDLE = threading.BoundedSemaphore(_MOST_IDLE_IN_ALL)

# `texts` has a message once, however many episodes use it, since prompts repeat; `uses.part` says
# whether it is an episode's task or answer. A search is for any part of a message, so its index
# is of trigrams. It stores no positions, since its hits are compared with the text once more.
_TABLES = f"""
CREATE TABLE files(kind TEXT, step INTEGER, stamp TEXT, problem TEXT, PRIMARY KEY(kind, step));
CREATE TABLE episodes(
    id INTEGER PRIMARY KEY, kind TEXT, step INTEGER, {", ".join(COLUMNS)});
CREATE UNIQUE INDEX by_place ON episodes(kind, step, place);
CREATE INDEX by_seed ON episodes(seed);
CREATE INDEX by_task ON episodes(task);
CREATE TABLE shown(id INTEGER PRIMARY KEY, task TEXT, answer TEXT, tools TEXT);
CREATE TABLE called(tool TEXT, episode INTEGER, PRIMARY KEY(tool, episode)) WITHOUT ROWID;
CREATE TABLE texts(id INTEGER PRIMARY KEY, hash INTEGER UNIQUE, text TEXT);
CREATE TABLE uses(
    text INTEGER, episode INTEGER, part INTEGER, PRIMARY KEY(text, episode)) WITHOUT ROWID;
CREATE INDEX by_episode ON uses(episode, text);
CREATE VIRTUAL TABLE words USING fts5(
    text, content='texts', content_rowid='id', tokenize='trigram', detail='none', columnsize=0);
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {VERSION};
"""


class IndexBroken(Exception):
    """The database was damaged; an empty one has replaced it."""


class Connection(sqlite3.Connection):
    """A connection that remembers its last search."""

    searched: tuple[str, int, int] | None = None
    """The text, where it must stand, and the version of the database in which `found` has its
    episodes."""


class Index:
    """The index of a run's episodes. Many threads may use it at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._idle: queue.LifoQueue[tuple[int, Connection]] = queue.LifoQueue()
        self._lock = threading.Lock()
        self.generation = 0
        """A number that changes when the database is rebuilt."""
        self._is_closed = False
        self._is_prepared = False
        self._inode = -1
        """The identity of the database file that was last opened or created."""

    # ---- opening ----

    def _prepare(self) -> None:
        """Make sure that a database of the current version is in that place.

        The caller holds the lock between viewers: another viewer that finds the database half made
        would take it for a broken one and remove it.
        """
        try:
            with contextlib.closing(self._connect()) as db:
                if _is_empty(db):
                    _make_tables(db)
                if _is_ours(db):
                    self._inode = os.stat(self.path).st_ino
                    os.utime(self.path)
                    return
        except sqlite3.DatabaseError as error:
            if _is_passing(error):
                raise
            _LOG.debug("the index %s is made again: %s", self.path, error)
        self._remove()
        with contextlib.closing(self._connect()) as db:
            _make_tables(db)
        self._inode = os.stat(self.path).st_ino

    @contextlib.contextmanager
    def _only_viewer(self) -> Iterator[None]:
        """Hold the lock between all viewers of this run, in this process and in others."""
        with open(f"{self.path}.lock", "ab") as file:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _connect(self) -> Connection:
        db = sqlite3.connect(
            self.path,
            timeout=_BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            factory=Connection,
        )
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = OFF")
            db.execute("PRAGMA temp_store = MEMORY")
            db.execute("PRAGMA cache_size = -16000")
        except sqlite3.Error:
            db.close()
            raise
        db.create_function("contains", 2, _contains, deterministic=True)
        return db

    def _remove(self) -> None:
        for suffix in ("", "-wal", "-shm", "-journal"):
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)

    def _renew(self, generation: int) -> None:
        """Replace the database by an empty one, unless that was done already.

        Another viewer may have done it: then another file is in its place, which is kept.
        """
        with self._lock:
            if generation == self.generation:
                self.generation += 1
                with self._only_viewer():
                    if self.path.exists() and os.stat(self.path).st_ino == self._inode:
                        self._remove()
                    self._prepare()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._drain()

    def _drain(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._take_idle()[1].close()

    def _take_idle(self) -> tuple[int, Connection]:
        found = self._idle.get_nowait()
        _IDLE.release()
        return found

    @contextlib.contextmanager
    def connection(self) -> Iterator[Connection]:
        """Lend a connection. A damaged database is replaced, and `IndexBroken` is raised."""
        generation, db = self._borrow()
        try:
            yield db
        except sqlite3.DatabaseError as error:
            db.close()
            if _is_passing(error):
                raise
            self._renew(generation)
            raise IndexBroken(str(error)) from error
        except BaseException:
            db.close()
            raise
        has_room = self._idle.qsize() < _MOST_IDLE and not self._is_closed
        if generation == self.generation and has_room and _IDLE.acquire(blocking=False):
            self._idle.put((generation, db))
        else:
            db.close()

    def _borrow(self) -> tuple[int, Connection]:
        while True:
            try:
                generation, db = self._take_idle()
            except queue.Empty:
                break
            if generation == self.generation:
                return generation, db
            db.close()
        with self._lock:
            if not self._is_prepared:  # only when it is needed: there may be thousands of runs
                with self._only_viewer():
                    self._prepare()
                self._is_prepared = True
            return self.generation, self._connect()

    # ---- writing ----

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """Open a transaction: everything written in it is kept, or nothing is."""
        with self.connection() as db:
            db.searched = None
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")


def _contains(text: str, part: str) -> bool:
    """Return whether a text contains a part, which is given in lower case."""
    return part in text.lower()


def _is_ours(db: Connection) -> bool:
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    return (application, version) == (_APPLICATION, VERSION)


def _is_empty(db: Connection) -> bool:
    return db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is None


def _make_tables(db: Connection) -> None:
    db.execute("BEGIN IMMEDIATE")
    for statement in _TABLES.split(";"):
        db.execute(statement)
    db.execute("COMMIT")


def _is_passing(error: sqlite3.DatabaseError) -> bool:
    """Return whether an error leaves the database intact: it was locked, or the query was wrong."""
    if not isinstance(error, sqlite3.OperationalError):
        return isinstance(error, sqlite3.ProgrammingError | sqlite3.DataError)
    return "locked" in str(error) or "interrupted" in str(error)


def index_path(run: Path) -> Path:
    """Return the place of a run's index: never inside the run, which may be read-only."""
    name = hashlib.sha256(os.fsencode(run)).hexdigest()[:24]
    return cache_folder() / f"{name}-{VERSION}.sqlite"


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(base).expanduser() / "turnwise" / "view"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    return _temporary_folder()


_TEMPORARY: list[tempfile.TemporaryDirectory[str]] = []


def _temporary_folder() -> Path:
    """Return a temporary folder for a home that is not writable; removed at exit."""
    if not _TEMPORARY:
        _TEMPORARY.append(tempfile.TemporaryDirectory(prefix="turnwise-view-"))
        _LOG.warning("the cache folder cannot be written: what is indexed is lost at the end")
    return Path(_TEMPORARY[0].name)


def remove_old_indexes() -> None:
    """Remove indexes that were not opened for long, or that are of another version."""
    oldest = time.time() - _DAYS_KEPT * 24 * 3600
    for path in cache_folder().glob("*.sqlite"):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < oldest or not path.stem.endswith(f"-{VERSION}"):
                for suffix in ("", "-wal", "-shm", ".lock"):
                    Path(f"{path}{suffix}").unlink(missing_ok=True)
