"""The episodes of a run in memory, as a table of their short columns, and the queries of the page.

Everything comes from the run's Parquet files: of each only the columns that a list shows are read,
once, and for a search the column of texts.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from turnwise.errors import ConfigError, did_you_mean
from turnwise.runs.episode_store import file_name, open_table, read_table
from turnwise.runs.episode_table import SCHEMA
from turnwise.types import EpisodeStatus
from turnwise.view.run_files import FileKey, FileStamp, describe

TEXT_COLUMNS = {"anything": "text", "task": "prompt", "answer": "answer"}
"""The columns in which a text is searched, by the names in the address."""
_MAX_SHOWN = 200
_READ = {
    **{name: name for name in ("seed", "group", "member", "part", "status", "reward", "success")},
    **{name: f"num_{name}" for name in ("turns", "tokens", "sampled_tokens", "tool_calls")},
    "branches": "num_branches",
    "tools": "tools",
}
"""The columns of the list that are in the files as they are, by their names in the list."""


# ---- the list ----


@dataclass
class _File:
    """What is known of one file of episodes."""

    stamp: FileStamp
    num_episodes: int = 0
    rows: pa.Table | None = None
    """None: nobody looks at them yet, or the file cannot be read."""
    problem: str | None = None


class EpisodeList:
    """The episodes of one run. Many threads may use it at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[FileKey, _File] = {}
        self._lock = threading.Lock()
        self._table: pa.Table | None = None
        self._searched: tuple[pa.Table, str, str, list[int]] | None = None
        self._is_open = False
        """Whether someone looks at the episodes; else they are only counted."""

    def open(self) -> None:
        """From the next update on read the episodes too, which until now were counted."""
        self._is_open = True

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
            newest_first = sorted(fresh, key=lambda key: (-key[1], key[0] != "train"))
            for number, key in enumerate(newest_first):
                if number and time.monotonic() > end:
                    break
                self._files[key] = self._read(key, stamps[key])
            if gone or fresh:
                self._table = None
            return bool(gone or fresh)

    def _is_read(self, key: FileKey) -> bool:
        file = self._files.get(key)
        return file is not None and bool(not self._is_open or file.rows is not None or file.problem)

    def _read(self, key: FileKey, stamp: FileStamp) -> _File:
        path = self._folder / file_name(*key)
        try:
            if self._is_open:
                names = [*_READ.values(), "seconds.total", "task_id", "prompt", "answer"]
                rows = _list_rows(read_table(path, names), key).cast(_NO_ROWS.schema)
                return _File(stamp, rows.num_rows, rows)
            with open_table(path) as file:
                return _File(stamp, file.metadata.num_rows)
        except Exception as error:  # the file may hold anything; the page shows the reason
            return _File(stamp, problem=describe(error))

    @property
    def num_episodes(self) -> int:
        return sum(file.num_episodes for file in list(self._files.values()))

    @property
    def num_files(self) -> int:
        """How many files were read."""
        return sum(map(self._is_read, list(self._files)))

    @property
    def steps(self) -> list[int]:
        return sorted({step for _, step in list(self._files)})

    @property
    def problem(self) -> str | None:
        """Why the first of the files that cannot be read cannot, and how many others there are."""
        problems = sorted(file.problem for file in list(self._files.values()) if file.problem)
        more = f" ({len(problems) - 1} more files)" if len(problems) > 1 else ""
        return f"{problems[0]}{more}" if problems else None

    @property
    def table(self) -> pa.Table:
        """All episodes that were read, by kind and step."""
        with self._lock:
            if self._table is None:
                files = sorted((key, file) for key, file in self._files.items() if file.rows)
                self._table = pa.concat_tables([_NO_ROWS, *(file.rows for _, file in files)])
            return self._table

    def search(self, table: pa.Table, text: str, part: str) -> list[int]:
        """Return the rows of a table of this list whose episodes contain a text, in any case."""
        last = self._searched
        if last is not None and last[0] is table and last[1:3] == (text, part):
            return last[3]  # the next page of the same search

        def search_file(key: FileKey) -> list[int]:
            hits = pc.match_substring(self.texts(key, part), text, ignore_case=True)
            return list(pc.indices_nonzero(hits).to_pylist())

        files = table.group_by(["kind", "step"], use_threads=False).aggregate([("index", "count")])
        sizes = {(row["kind"], row["step"]): row["index_count"] for row in files.to_pylist()}
        rows, start = [], 0
        for size, hits in zip(sizes.values(), _pool().map(search_file, sizes), strict=True):
            rows += [start + hit for hit in hits if hit < size]
            start += size
        self._searched = table, text, part, rows
        return rows

    def texts(self, key: FileKey, part: str) -> pa.ChunkedArray:
        """Return the text of each episode of a file in which a search looks."""
        column = TEXT_COLUMNS[part]
        try:
            path = self._folder / file_name(*key)
            return read_table(path, [column])[column]
        except Exception:  # the file was removed or replaced a moment ago
            return pa.chunked_array([], pa.string())


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(4, "turnwise-search")


def _list_rows(read: pa.Table, key: FileKey) -> pa.Table:
    """Return what a list shows of the episodes of a file."""
    keys = zip(*(read[name].to_pylist() for name in ("task_id", "seed", "part")), strict=True)
    size = read.num_rows
    return pa.table(
        {
            **{name: read[column] for name, column in _READ.items()},
            "kind": pa.array([key[0]] * size, pa.string()),
            "step": pa.array([key[1]] * size, pa.int64()),
            "index": pa.array(range(size), pa.int64()),
            "seconds": pc.struct_field(read["seconds"], "total"),
            "task": _beginnings(read["prompt"]),
            "answer": _beginnings(read["answer"]),
            "task_key": pa.array([task_key(*names) for names in keys], pa.string()),
        }
    )


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
    return f"{part}/{key}" if part else key


_NO_ROWS = _list_rows(SCHEMA.empty_table(), ("train", 0))

# ---- queries ----

_SORTS = [name for name in _NO_ROWS.column_names if name != "tools"]
_WORDS = {"kind": "kind", "status": "status", "task": "task_key", "part": "part"}
_RANGES = {
    f"{end}_{name}": name
    for name in ("reward", "turns", "tokens", "step", "branches")
    for end in ("min", "max")
}
_CHOICES = {
    "in": tuple(TEXT_COLUMNS),
    "success": ("yes", "no"),
    "sort": (*_SORTS, *(f"-{name}" for name in _SORTS)),
}
_NUMBERS = ("limit", "offset", "seed", "step", *_RANGES)
_FILTERS = ("text", "tool", *_WORDS, *_CHOICES, *_NUMBERS)
_ERRORS = [status.value for status in EpisodeStatus if status.is_error]
_IS_SUCCESS = pc.coalesce(pc.field("success"), pc.scalar(False))
_SUCCESSES = {
    "yes": _IS_SUCCESS,
    # Counted as in the metrics: without a report there is no success. Failed episodes have neither.
    "no": ~_IS_SUCCESS & ~pc.field("status").isin(_ERRORS),
}
_MOST = 500
_MAX_INTEGER = 2**63 - 1
_AROUND = 60
"""Characters of a text that are shown on either side of a hit."""


def find_episodes(episodes: EpisodeList, asked: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return how many episodes meet the filters of an address, and those of the requested page."""
    given: dict[str, list[str]] = {}
    for name, value in asked:
        if name not in _FILTERS:
            raise ConfigError(f"there is no filter {name!r}. {did_you_mean(name, _FILTERS)}")
        if value:
            given.setdefault(name, []).append(value)
            if value not in _CHOICES.get(name, (value,)):
                near = did_you_mean(value, _CHOICES[name])
                raise ConfigError(f"{name} got {value[:80]!r}. {near}")
    page = {"text": "", "in": "anything", "sort": "-step", "limit": "50", "offset": "0"}
    page = {name: given.pop(name, [usual])[-1] for name, usual in page.items()}
    text, part = page["text"], page["in"]
    start, limit = (int(_number(name, page[name])) for name in ("offset", "limit"))
    tools = _words(given.pop("tool", []))
    conditions = [_condition(name, values) for name, values in given.items()]

    table = episodes.table
    if text:
        table = table.take(pa.array(episodes.search(table, text, part), pa.int64()))
    if tools:
        called = pc.is_in(pc.list_flatten(table["tools"]), pa.array(tools, pa.string()))
        callers = pc.list_parent_indices(table["tools"]).filter(called)
        table = table.take(pc.unique(callers))
    for condition in conditions:
        table = table.filter(condition)
    column = page["sort"].removeprefix("-")
    usual_order = [("step", "descending"), ("kind", "descending"), ("index", "ascending")]
    order = [(column, "descending" if page["sort"].startswith("-") else "ascending")]
    order += [key for key in usual_order if key[0] != column]
    rows = table.take(pc.sort_indices(table, order)[start : start + limit]).to_pylist()
    files = {(row["kind"], row["step"]) for row in rows if text}
    texts = {key: episodes.texts(key, part) for key in files}
    for row in rows:
        row["id"], row["seed"] = f"{row['kind']}-{row['step']}-{row['index']}", str(row["seed"])
        if text:  # its file may have been replaced a moment ago
            searched = texts[row["kind"], row["step"]].slice(row["index"], 1)
            row["snippet"] = snippet("".join(searched.to_pylist()), text)
    return {"total": table.num_rows, "episodes": rows}


def _condition(name: str, values: list[str]) -> pc.Expression:
    if name == "success":
        return _SUCCESSES[values[-1]]
    if name in _WORDS:
        words = _words(values)
        is_any_error = name == "status" and "error" in words
        return pc.field(_WORDS[name]).isin([*words, *(_ERRORS if is_any_error else ())])
    number, column = _number(name, values[-1]), pc.field(_RANGES.get(name, name))
    if name.startswith("min_"):
        return column >= number
    return column <= number if name.startswith("max_") else column == number


def _words(values: list[str]) -> list[str]:
    # A tool's name is the model's own, and may have a comma in it.
    return [word for value in values for word in (value, *value.split(","))]


def neighbours(
    episodes: EpisodeList, kind: str, step: int, index: int
) -> tuple[str | None, str | None]:
    """Return the ids of the episodes before and after one, of the same kind."""
    rows = episodes.table.filter(pc.field("kind") == kind)  # by step and index
    steps, indices = rows["step"].to_numpy(), rows["index"].to_numpy()
    (positions,) = ((steps == step) & (indices == index)).nonzero()
    if not len(positions):
        return None, None
    before, after = int(positions[0]) - 1, int(positions[0]) + 1
    ids = {n: f"{kind}-{steps[n]}-{indices[n]}" for n in (before, after) if 0 <= n < len(steps)}
    return ids.get(before), ids.get(after)


def overview(episodes: EpisodeList) -> Mapping[str, Any]:
    """Return the values that the filters offer."""
    table = episodes.table
    kinds, statuses, parts = (_counts(table[name]) for name in ("kind", "status", "part"))
    has_reports = table["success"].null_count < table.num_rows
    successes = {name: table.filter(which).num_rows for name, which in _SUCCESSES.items()}
    return {
        "steps": episodes.steps,
        "branched": table.filter(pc.field("branches") > 1).num_rows,
        "kinds": sorted(kinds, key=lambda kind: (kind != "train", kind)),
        "statuses": statuses,
        "successes": successes if has_reports else {},
        "parts": {name: count for name, count in parts.items() if name},
        "tools": _counts(pc.list_flatten(table["tools"])),
    }


def _counts(values: pa.ChunkedArray) -> dict[str, int]:
    return {one["values"]: one["counts"] for one in pc.value_counts(values).to_pylist()}


def snippet(text: str, searched: str) -> dict[str, Any] | None:
    """Return where a text was last said, with some words around it; None if it was not.

    The last place says most: what stands at the beginning, other episodes have too. Places are
    counted as JavaScript does, where a character beyond U+FFFF is two.

    >>> snippet("Is it more than 500? No.", "THAN 5")
    {'text': 'Is it more than 500? No.', 'start': 11, 'end': 17}
    """
    hits = list(re.finditer(re.escape(searched), text, re.IGNORECASE))
    if not hits:
        return None
    first, last = hits[-1].span()
    start, end = max(first - _AROUND, 0), min(last + _AROUND, len(text))
    before, hit = text[start:first], text[first:last]
    before = f"…{before}" if start else before
    after = text[last:end] + ("…" if end < len(text) else "")
    begin, size = (len(part.encode("utf-16-le", "surrogatepass")) // 2 for part in (before, hit))
    return {"text": before + hit + after, "start": begin, "end": begin + size}


def _number(name: str, value: str) -> float:
    is_reward = name.endswith("_reward")
    limits = {"limit": (1, _MOST), "offset": (0, _MAX_INTEGER)}
    usual = (-math.inf, math.inf) if is_reward else (-_MAX_INTEGER, _MAX_INTEGER)
    least, most = limits.get(name, usual)
    try:
        number = float(value) if is_reward else int(value)
    except ValueError:
        number = math.nan
    if not least <= number <= most:
        raise ConfigError(f"{name} got {value[:80]!r}, expected a number of {least} to {most}")
    return number
