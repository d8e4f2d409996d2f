"""The rows of a run's datasets: where they came from, and a copy of those that are in no file."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from turnwise.config import DatasetConfig
from turnwise.data import CustomEnvDataset, PromptDataset
from turnwise.data.sources import is_file_name
from turnwise.trainer.labels import is_lost, object_label

MOST_KEPT_BYTES = 64 * 2**20
"""Of the rows of a dataset that stand in no file; more are not kept."""
_MOST_HASHED_ROWS = 100_000


def dataset_setting(given: Any) -> DatasetConfig:
    """Return how the settings name a dataset that Python gave; rows in memory have a label."""
    if isinstance(given, CustomEnvDataset):  # the environment's own seeds
        return DatasetConfig()
    return _file_origin(given) or DatasetConfig(path=object_label(given))


def rows_facts(setting: DatasetConfig, given: Any, rows: Any) -> dict[str, Any]:
    """Return what `run.json` says about the rows of a dataset."""
    facts: dict[str, Any] = {"path": setting.path, "split": setting.split}
    if given is not None and (setting.path is None or any(map(is_lost, setting.paths))):
        kind = type(given).__name__
        facts = {"origin": f"a {kind} in Python" if setting.path else "the environment's openings"}
    return {**facts, "rows": len(rows), "hash": dataset_hash(rows), "columns": _columns(rows)}


def rows_to_keep(rows: Any) -> tuple[bytes | None, str]:
    """Return the rows as lines of JSON, or None and why no file can give the same rows again."""
    expected_hash = dataset_hash(rows)
    lines: list[bytes] = []
    size = 0
    for index in range(len(rows)):
        row = _row(rows, index)
        try:
            line = json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n"
            is_same = json.loads(line) == row
        except (TypeError, ValueError, RecursionError) as error:
            return None, f"row {index} cannot be written as JSON: {error}"
        if not is_same:
            return None, f"row {index} comes back from JSON as another one: {_difference(row)}"
        lines.append(line)
        size += len(line)
        if size > MOST_KEPT_BYTES:
            return None, f"the rows take more than {MOST_KEPT_BYTES // 2**20} MiB"
    if dataset_hash(rows) != expected_hash:
        return None, "the rows are others each time that they are read"
    return b"".join(lines), ""


def dataset_hash(rows: Any) -> str:
    """Return a hash of the rows; of a very long dataset, of the first ones and its length."""
    digest = hashlib.sha256(str(len(rows)).encode())
    for index in range(min(len(rows), _MOST_HASHED_ROWS)):
        digest.update(json.dumps(_row(rows, index), sort_keys=True, default=repr).encode())
    return digest.hexdigest()[:16]


def _row(rows: Any, index: int) -> Any:
    """A row as an episode gets it, but for the token ids, which follow from it."""
    return rows.plain_row(index) if isinstance(rows, PromptDataset) else rows[index]


def _columns(rows: Any) -> list[str]:
    first = _row(rows, 0)
    return sorted(map(str, first)) if isinstance(first, dict) else []


def _file_origin(given: Any) -> DatasetConfig | None:
    """The files that a dataset was read from, so that they are found again from elsewhere."""
    if isinstance(given, str | Path):
        return DatasetConfig(path=[portable_path(given)])
    if isinstance(given, list | tuple) and given and all(map(is_file_name, given)):
        return DatasetConfig(path=[portable_path(path) for path in given])
    # A subclass may make other items of the rows than the files hold.
    origin = given.origin if type(given) is PromptDataset else None
    if origin is None or origin.path is None:
        return None
    names = [origin.path] if isinstance(origin.path, str) else origin.path
    return dataclasses.replace(origin, path=[portable_path(path) for path in names])


def portable_path(path: str | Path) -> str:
    """Return a path relative to the working directory if the file is below it.

    Then the project can be moved as a whole: `run.json` has the folder that it is relative to.
    """
    place, here = Path(path), Path.cwd()
    if place.is_absolute() and place.is_relative_to(here):
        return str(place.relative_to(here))
    return os.fspath(path)


def _difference(row: Any) -> str:
    """Which value of a row JSON does not keep."""
    for name, value in row.items() if isinstance(row, dict) else ():
        if not isinstance(name, str):
            return f"the column {name!r} has a name that is no text"
        if json.loads(json.dumps(value)) != value:
            return f"{name} is {value!r:.60} (tuples and keys that are no text become others)"
    return f"it is a {type(row).__name__}"
