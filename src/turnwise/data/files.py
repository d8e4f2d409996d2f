"""Rows from files, with the place of each, so that a mistake can be found."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from turnwise.bounded_files import parse_json
from turnwise.errors import ConfigError, import_extra

FILE_KINDS = (".jsonl", ".json", ".parquet")

Placed: TypeAlias = tuple[str, object]
"""Where a value stands, in words, and the value."""


def read_files(paths: Iterable[str | Path]) -> Iterator[Placed]:
    """The rows of all files, one after the other."""
    for path in (Path(path).expanduser() for path in paths):
        if path.suffix not in FILE_KINDS:
            raise ConfigError(
                f"{str(path)!r} is no file of a kind that is read: {', '.join(FILE_KINDS)}. "
                "A single prompt goes into a list: [prompt]. A table such as .csv is given as "
                "rows: pandas.read_csv(path).to_dict('records'). A dataset of the Hugging Face hub "
                "is loaded by its own package: datasets.load_dataset(name, split='train')."
            )
        if path.is_dir():
            raise ConfigError(f"{path} is a folder, expected a file")
        if not path.is_file():
            is_there = os.path.lexists(path)
            what = "is no plain file" if is_there else f"is not there (looked in {Path.cwd()})"
            raise ConfigError(f"there is no file {path}: it {what}")
        if path.stat().st_size == 0:
            raise ConfigError(f"{path} is empty, expected rows with a prompt")
        readers = {".jsonl": _read_lines, ".json": _read_array, ".parquet": _read_parquet}
        try:
            yield from readers[path.suffix](path)
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error


def _read_lines(path: Path) -> Iterator[Placed]:
    """One JSON value a line; empty lines are skipped."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            text = _decoded(line, f"{path}, line {number}").strip()
            if text:
                yield f"{path}, line {number}", parse_json(text, f"{path}, line {number}")


def _read_array(path: Path) -> Iterator[Placed]:
    """A JSON list of rows."""
    text = _decoded(path.read_bytes(), str(path))
    try:
        values = parse_json(text, str(path))
    except ConfigError as error:
        if "Extra data" in str(error):
            raise ConfigError(
                f"{error}. It has more than one JSON value. Is it one a line? Then name it "
                f"{path.with_suffix('.jsonl').name}."
            ) from None
        raise
    if not isinstance(values, list):
        raise ConfigError(
            f"{path} holds a {type(values).__name__}, {text[:60].strip()!r} ..., expected a list "
            "of rows"
        )
    for number, value in enumerate(values):
        yield f"{path}, row {number}", value


def _read_parquet(path: Path) -> Iterator[Placed]:
    arrow: Any = import_extra("pyarrow", "parquet")
    parquet: Any = import_extra("pyarrow.parquet", "parquet")
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches():
                for row in batch.to_pylist():
                    yield f"{path}, row {number}", row
                    number += 1
    except (arrow.ArrowException, OSError, ValueError, OverflowError) as error:
        # Damage shows as any of these, a name that is no UTF-8 among them.
        raise ConfigError(
            f"{path} cannot be read as Parquet, after {number} rows: {error}"
        ) from error


def _decoded(data: bytes, place: str) -> str:
    try:
        return data.decode("utf-8-sig")  # some editors begin a file with a mark
    except UnicodeDecodeError as error:
        raise ConfigError(f"{place} is not UTF-8: {error}. Save the file as UTF-8.") from None
