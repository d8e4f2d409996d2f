"""The short columns of a run's episodes in memory, and the search in their texts.

Everything comes from the run's Parquet files: of each only the columns that a list shows are read,
once, and for a search the column of texts.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from turnwise.runs.episode_store import file_name, open_table, read_table
from turnwise.runs.episode_table import SCHEMA
from turnwise.view.run_files import MAX_FILE_BYTES, FileKey, FileStamp, describe

TEXT_COLUMNS = {"anything": "text", "task": "prompt", "answer": "answer"}
"""The columns in which a text is searched, by the names in the address."""
_MAX_SHOWN = 200
_MAX_PROBLEM = 500
_READ = {
    **{name: name for name in ("seed", "group", "member", "part", "status", "reward", "success")},
    **{name: f"num_{name}" for name in ("turns", "tokens", "sampled_tokens", "tool_calls")},
    "branches": "num_branches",
    "tools": "tools",
}
"""The columns of the list that are in the files as they are, by their names in the list."""
_DERIVED = {
    "kind": pa.string(),
    "step": pa.int64(),
    "index": pa.int64(),
    "seconds": pa.float64(),
    "task": pa.string(),
    "answer": pa.string(),
    "task_key": pa.string(),
}
_LIST = pa.schema(
    [
        *((name, SCHEMA.field(column).type) for name, column in _READ.items()),
        *_DERIVED.items(),
    ]
)


@dataclass
class _File:
    """What is known of one file of episodes."""

    stamp: FileStamp
    num_episodes: int = 0
    rows: pa.Table | None = None
    """None: not read yet, or the file cannot be read."""
    problem: str | None = None


class EpisodeList:
    """The episodes of one run. Many threads may use it at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[FileKey, _File] = {}
        self._lock = threading.Lock()
        self._table: pa.Table | None = None
        self._searched: tuple[Any, list[int]] | None = None
        self.is_open = False
        """Whether someone looks at the episodes; else they are only counted."""

    def update(self, stamps: Mapping[FileKey, FileStamp], seconds: float) -> bool:
        """Follow the run's files for so long, the newest steps first; return whether any changed.

        There may be thousands of runs: of those that nobody opened, no rows are in memory.
        """
        end = time.monotonic() + seconds
        with self._lock:
            gone = [key for key, file in self._files.items() if stamps.get(key) != file.stamp]
            for key in gone:
                del self._files[key]
            fresh = [key for key in stamps if not self._is_read(key)]
            fresh.sort(key=lambda key: (-key[1], key[0] != "train"))
            num_read = 0
            for key in fresh:
                if num_read and time.monotonic() > end:
                    break
                self._files[key] = self._read(key, stamps[key])
                num_read += 1
            if gone or num_read:
                self._table = None
            return bool(gone or num_read)

    def _is_read(self, key: FileKey) -> bool:
        file = self._files.get(key)
        return file is not None and (
            not self.is_open or file.rows is not None or file.problem is not None
        )

    def _read(self, key: FileKey, stamp: FileStamp) -> _File:
        path = self._folder / file_name(*key)
        try:
            if self.is_open:
                rows = _list_rows(path, key)
                return _File(stamp, rows.num_rows, rows)
            with open_table(path, MAX_FILE_BYTES) as file:
                return _File(stamp, file.metadata.num_rows)
        except Exception as error:  # the file may hold anything; the page shows the reason
            return _File(stamp, problem=describe(error)[:_MAX_PROBLEM])

    @property
    def num_episodes(self) -> int:
        return sum(file.num_episodes for file in list(self._files.values()))

    @property
    def num_files(self) -> int:
        """How many files were read."""
        return sum(self._is_read(key) for key in list(self._files))

    @property
    def steps(self) -> list[int]:
        return sorted({step for _, step in list(self._files)})

    @property
    def problem(self) -> str | None:
        """Why the first of the files that cannot be read cannot, and how many others there are."""
        problems = sorted(file.problem for file in list(self._files.values()) if file.problem)
        if len(problems) > 1:
            return f"{problems[0]} ({len(problems) - 1} more files)"
        return problems[0] if problems else None

    @property
    def table(self) -> pa.Table:
        """All episodes that were read, by kind and step."""
        with self._lock:
            if self._table is None:
                files = sorted((key, file) for key, file in self._files.items() if file.rows)
                self._table = pa.concat_tables([_LIST.empty_table(), *(f.rows for _, f in files)])
            return self._table

    def search(self, table: pa.Table, text: str, part: str) -> list[int]:
        """Return the rows of a table of this list whose episodes contain a text, in any case."""
        asked = text, part
        last = self._searched  # the next page of the same search
        if last is not None and last[0][0] is table and last[0][1:] == asked:
            return last[1]
        column = TEXT_COLUMNS[part]

        def search_file(key: FileKey) -> list[int]:
            texts = self._texts(key, column)
            hits = pc.match_substring(texts, text, ignore_case=True)
            return list(pc.indices_nonzero(hits).to_pylist())

        starts = _starts(table)
        with_hits = _pool().map(search_file, starts)
        rows = [
            start + hit
            for (start, size), hits in zip(starts.values(), with_hits, strict=True)
            for hit in hits
            if hit < size
        ]
        self._searched = (table, *asked), rows
        return rows

    def texts(self, places: Iterable[tuple[FileKey, int]], part: str) -> Iterator[str]:
        """Yield the searched text of some episodes, by file and row."""
        files: dict[FileKey, pa.ChunkedArray] = {}
        for key, row in places:
            if key not in files:
                files[key] = self._texts(key, TEXT_COLUMNS[part])
            yield files[key][row].as_py() if row < len(files[key]) else ""

    def _texts(self, key: FileKey, column: str) -> pa.ChunkedArray:
        try:
            path = self._folder / file_name(*key)
            return read_table(path, [column], max_bytes=MAX_FILE_BYTES)[column]
        except Exception:  # the file was removed or replaced a moment ago
            return pa.chunked_array([], pa.string())


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(4, "turnwise-search")


def _starts(table: pa.Table) -> dict[FileKey, tuple[int, int]]:
    """Return where the rows of each file begin in a table, and how many they are."""
    groups = table.group_by(["kind", "step"], use_threads=False).aggregate([("index", "count")])
    starts, start = {}, 0
    for row in groups.to_pylist():
        starts[row["kind"], row["step"]] = start, row["index_count"]
        start += row["index_count"]
    return starts


def _list_rows(path: Path, key: FileKey) -> pa.Table:
    """Return what a list shows of the episodes of a file."""
    names = [*_READ.values(), "seconds.total", "task_id", "prompt", "answer"]
    read = read_table(path, names, max_bytes=MAX_FILE_BYTES)
    keys = zip(*(read[name].to_pylist() for name in ("task_id", "seed", "part")), strict=True)
    size = read.num_rows
    columns = {
        **{name: read[column] for name, column in _READ.items()},
        "kind": pa.array([key[0]] * size, pa.string()),
        "step": pa.array([key[1]] * size, pa.int64()),
        "index": pa.array(range(size), pa.int64()),
        "seconds": pc.struct_field(read["seconds"], "total"),
        "task": _beginnings(read["prompt"]),
        "answer": _beginnings(read["answer"]),
        "task_key": pa.array([task_key(*names) for names in keys], pa.string()),
    }
    return pa.table([columns[name] for name in _LIST.names], _LIST)


def _beginnings(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the first words of each text in one line."""
    start = pc.utf8_slice_codeunits(texts, 0, 4 * _MAX_SHOWN)
    line = pc.utf8_trim_whitespace(pc.replace_substring_regex(start, r"\s+", " "))
    return pc.utf8_slice_codeunits(line, 0, _MAX_SHOWN)


def task_key(task_id: str | None, seed: int, part: str) -> str:
    """Return the key of an episode's task: the row of the dataset, else the environment's seed.

    In a mix, each environment has its own tasks.
    """
    key = task_id or f"seed-{seed}"
    if part:
        named = json.dumps([part, key]).encode()
        key = hashlib.blake2b(named, digest_size=8).hexdigest()
    return key
