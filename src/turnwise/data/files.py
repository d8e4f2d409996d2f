"""Rows from files, with the place of each, so that a mistake can be found."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

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
                "A single prompt goes into a list: [prompt]. A dataset of the Hugging Face hub is "
                "loaded by its own package: datasets.load_dataset(name, split='train')."
            )
        if not path.is_file():
            raise ConfigError(f"there is no file {path} (looked in {Path.cwd()})")
        if path.stat().st_size == 0:
            raise ConfigError(f"{path} is empty, expected rows with a prompt")
        readers = {".jsonl": _read_lines, ".json": _read_array, ".parquet": _read_parquet}
        yield from readers[path.suffix](path)


def _read_lines(path: Path) -> Iterator[Placed]:
    """One JSON value a line; empty lines are skipped."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            text = _decoded(line, f"{path}, line {number}").strip()
            if text:
                yield f"{path}, line {number}", _parsed(text, f"{path}, line {number}")


def _read_array(path: Path) -> Iterator[Placed]:
    """A JSON list of rows."""
    text = _decoded(path.read_bytes(), str(path))
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            raise ConfigError(
                f"{path} has more than one JSON value: line {error.lineno} begins another. Is it "
                f"one a line? Then name it {path.with_suffix('.jsonl').name}."
            ) from None
        raise ConfigError(
            f"{path}, line {error.lineno} is no JSON: {error.msg} at column {error.colno}"
        ) from None
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
    except arrow.ArrowException as error:
        raise ConfigError(f"{path} cannot be read as Parquet: {error}") from error


def _decoded(data: bytes, place: str) -> str:
    try:
        return data.decode("utf-8-sig")  # some editors begin a file with a mark
    except UnicodeDecodeError as error:
        raise ConfigError(f"{place} is not UTF-8: {error}. Save the file as UTF-8.") from None


def _parsed(text: str, place: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{place} is no JSON: {error.msg} at column {error.colno}; it is {text[:60]!r}"
        ) from None
    except RecursionError:
        raise ConfigError(f"{place} is nested too deeply; it begins with {text[:60]!r}") from None
