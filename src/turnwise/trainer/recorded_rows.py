"""The rows of a run's datasets: their origin, and a copy of those that are in no file."""

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
from turnwise.user_code import is_lost, object_label

MAX_KEPT_BYTES = 64 * 2**20
"""Of the rows of a dataset that are in no file; larger datasets are not kept."""
_MAX_HASHED_ROWS = 100_000


def dataset_setting(given: Any) -> DatasetConfig:
    """Return the setting for a dataset that was given in Python; rows in memory have a label."""
    if isinstance(given, CustomEnvDataset):  # the environment's own seeds
        return DatasetConfig()
    return _file_origin(given) or DatasetConfig(path=object_label(given))


def rows_facts(setting: DatasetConfig, given: Any, rows: Any) -> dict[str, Any]:
    """Return the facts about the rows of a dataset for `run.json`."""
    facts: dict[str, Any] = {"path": setting.path, "split": setting.split}
    if given is not None and (setting.path is None or any(map(is_lost, setting.paths))):
        kind = type(given).__name__
        facts = {"origin": f"a {kind} in Python" if setting.path else "the environment's openings"}
    return {**facts, "rows": len(rows), "hash": dataset_hash(rows), "columns": _columns(rows)}


def rows_to_keep(rows: Any) -> tuple[bytes | None, str]:
    """Return the rows as lines of JSON, or None and why they cannot be written so."""
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
            return None, f"row {index} changes when it is written as JSON: {_difference(row)}"
        lines.append(line)
        size += len(line)
        if size > MAX_KEPT_BYTES:
            return None, f"the rows take more than {MAX_KEPT_BYTES // 2**20} MiB"
    if dataset_hash(rows) != expected_hash:
        return None, "the rows differ each time that they are read"
    return b"".join(lines), ""


def dataset_hash(rows: Any) -> str:
    """Return a hash of the rows; of a very long dataset, of its first rows and its length."""
    digest = hashlib.sha256(str(len(rows)).encode())
    for index in range(min(len(rows), _MAX_HASHED_ROWS)):
        digest.update(json.dumps(_row(rows, index), sort_keys=True, default=repr).encode())
    return digest.hexdigest()[:16]


def _row(rows: Any, index: int) -> Any:
    """Return a row as an episode gets it, without token ids, which follow from it."""
    return rows.plain_row(index) if isinstance(rows, PromptDataset) else rows[index]


def _columns(rows: Any) -> list[str]:
    first = _row(rows, 0)
    return sorted(map(str, first)) if isinstance(first, dict) else []


def _file_origin(given: Any) -> DatasetConfig | None:
    """Return the setting of the files that a dataset was read from, None if there are none."""
    if isinstance(given, str | Path):
        return DatasetConfig(path=[portable_path(given)])
    if isinstance(given, list | tuple) and given and all(map(is_file_name, given)):
        return DatasetConfig(path=[portable_path(path) for path in given])
    # A subclass may change the rows of the files.
    origin = given.origin if type(given) is PromptDataset else None
    if origin is None or origin.path is None:
        return None
    names = [origin.path] if isinstance(origin.path, str) else origin.path
    return dataclasses.replace(origin, path=[portable_path(path) for path in names])


def portable_path(path: str | Path) -> str:
    """Return a path relative to the working directory if the file is below it.

    So the project can be moved as a whole: `run.json` has the folder that it is relative to.
    """
    file, here = Path(path), Path.cwd()
    if file.is_absolute() and file.is_relative_to(here):
        return str(file.relative_to(here))
    return os.fspath(path)


def _difference(row: Any) -> str:
    """Return which value of a row JSON does not preserve."""
    for name, value in row.items() if isinstance(row, dict) else ():
        if not isinstance(name, str):
            return f"the column {name!r} has a name that is not a string"
        if json.loads(json.dumps(value)) != value:
            return f"{name} is {value!r:.60} (JSON changes tuples, and keys that are not strings)"
    return f"it is a {type(row).__name__}"
