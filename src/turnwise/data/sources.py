"""Reads the rows of a dataset: from files, lists, and objects with a length and items."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from turnwise.bounded_files import parse_json
from turnwise.env.prompts import prompt_of
from turnwise.errors import ConfigError, did_you_mean

FILE_KINDS = (".jsonl", ".json", ".parquet")

Row: TypeAlias = dict[str, Any]
Placed: TypeAlias = tuple[str, object]
"""Where a value is, for error messages, and the value."""


@runtime_checkable
class Indexed(Protocol):
    """Anything with a length and items, such as a Hugging Face or torch dataset."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


Source: TypeAlias = str | Path | Sequence[str | Path | Mapping[str, Any]] | Indexed


def read_rows(source: Source, prompt_key: str | None) -> list[Row] | LazyRows:
    """Return the rows of a source. Rows of files and lists are checked now, others when read.

    Without a `prompt_key` the rows are taken as they are: an environment reads them.
    """
    if isinstance(source, str | Path):
        source = [Path(source)]
    rows: list[Row] | LazyRows
    if isinstance(source, list | tuple):
        is_files = len(source) > 0 and all(map(is_file_name, source))
        listed = ((f"row {number} of the list", value) for number, value in enumerate(source))
        placed = read_files(source) if is_files else listed
        rows = [read_row(value, prompt_key, place) for place, value in placed]
    elif isinstance(source, Mapping):
        names = ", ".join(map(repr, source))
        raise ConfigError(
            f"the source of a dataset is a {type(source).__name__} of {names}, expected rows. "
            "Choose one split, as in source['train']."
        )
    elif isinstance(source, Indexed):
        rows = LazyRows(source, prompt_key)
    else:
        raise ConfigError(
            f"the source of a dataset is {source!r:.100} ({type(source).__name__}), expected a "
            f"file ({', '.join(FILE_KINDS)}) or a list of files, a list of texts or dicts, or an "
            "object with a length that gives dicts by number, such as a split of a Hugging Face "
            "dataset. Collect what comes one by one: list(source)."
        )
    if not rows:
        raise ConfigError(f"there are no rows in {source or 'the list'!s:.200}")
    return rows


class LazyRows:
    """The rows of an indexed dataset, read and checked on access."""

    def __init__(self, source: Indexed, prompt_key: str | None) -> None:
        self._source = source
        self._prompt_key = prompt_key
        if len(source) > 0:
            self._read(0)  # so that a wrong `prompt_key` fails before the training begins

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Row:
        return self._read(range(len(self))[operator.index(index)])

    def _read(self, number: int) -> Row:
        place = f"row {number} of the {type(self._source).__name__}"
        try:
            value = self._source[number]
        except KeyError as error:
            if error.args != (number,):
                raise  # another error inside of the dataset
            raise ConfigError(
                f"{place} cannot be read by its index. "
                "A table of pandas is given as table.to_dict('records')."
            ) from None
        return read_row(value, self._prompt_key, place)


def read_row(value: object, prompt_key: str | None, place: str) -> Row:
    """Return a row with its `prompt`, which is text or a list of messages."""
    if isinstance(value, str):
        value = {prompt_key or "prompt": value}
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{place} is {value!r:.100} ({type(value).__name__}), expected a text or a dict"
        )
    row = dict(value)
    if prompt_key is None:
        return row
    if prompt_key not in row:
        raise ConfigError(
            f"{place} has no {prompt_key!r}. {did_you_mean(prompt_key, map(str, row))} "
            "Say which column is the prompt: the setting dataset.prompt_key, or prompt_key=..."
        )
    prompt = row[prompt_key]
    # A table of pandas holds lists as arrays.
    row["prompt"] = prompt.tolist() if isinstance(prompt, np.ndarray) else prompt
    try:
        text = prompt_of(row).text
        if not text.strip():
            raise ConfigError(f"the prompt is empty: {prompt!r:.100}")
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{place}: the prompt is not text: {error}. Replace half surrogate pairs."
        ) from None
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from None
    return row


def is_file_name(value: object) -> bool:
    """Return whether a value is a path, or text that ends like one and has no spaces."""
    if isinstance(value, str):
        return value.endswith(FILE_KINDS) and len(value.split()) == 1
    return isinstance(value, Path)


def read_files(paths: Iterable[str | Path]) -> Iterator[Placed]:
    """Yield the rows of all files in order, each with its place for error messages."""
    for path in (Path(path).expanduser() for path in paths):
        if path.suffix not in FILE_KINDS:
            raise ConfigError(
                f"{str(path)!r} is not a file of a supported type: {', '.join(FILE_KINDS)}. "
                "A single prompt goes into a list: [prompt]. A table such as .csv is given as "
                "rows: pandas.read_csv(path).to_dict('records'). A dataset of the Hugging Face hub "
                "is loaded by its own package: datasets.load_dataset(name, split='train')."
            )
        if path.is_dir():
            raise ConfigError(f"{path} is a folder, expected a file")
        if not path.is_file():
            is_there = os.path.lexists(path)
            what = "is not a plain file" if is_there else f"is not there (looked in {Path.cwd()})"
            raise ConfigError(f"there is no file {path}: it {what}")
        if path.stat().st_size == 0:
            raise ConfigError(f"{path} is empty, expected rows with a prompt")
        readers = {".jsonl": _read_lines, ".json": _read_array, ".parquet": _read_parquet}
        try:
            yield from readers[path.suffix](path)
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error


def _read_lines(path: Path) -> Iterator[Placed]:
    """Yield one JSON value per line; empty lines are skipped."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            text = _decoded(line, f"{path}, line {number}").strip()
            if text:
                yield f"{path}, line {number}", parse_json(text, f"{path}, line {number}")


def _read_array(path: Path) -> Iterator[Placed]:
    """Yield the rows of a JSON list."""
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
    from pyarrow import ArrowException, parquet  # late: most datasets are JSON

    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches():
                for row in batch.to_pylist():
                    yield f"{path}, row {number}", row
                    number += 1
    except (ArrowException, OSError, ValueError, OverflowError) as error:
        # A damaged file raises any of these.
        raise ConfigError(
            f"{path} cannot be read as Parquet, after {number} rows: {error}"
        ) from error


def _decoded(data: bytes, place: str) -> str:
    try:
        return data.decode("utf-8-sig")  # some editors write a byte order mark
    except UnicodeDecodeError as error:
        raise ConfigError(f"{place} is not UTF-8: {error}. Save the file as UTF-8.") from None
