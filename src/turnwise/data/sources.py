"""Reads the rows of a dataset: from files, lists, and objects with a length and items."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from turnwise.env.catalog import TASK_SOURCES
from turnwise.env.prompts import read_prompt
from turnwise.errors import ConfigError, did_you_mean
from turnwise.json_files import parse_json
from turnwise.user_code import import_object

FILE_KINDS = (".jsonl", ".json", ".parquet")

Row: TypeAlias = dict[str, Any]
Located: TypeAlias = tuple[str, object]
"""Where a value is, for error messages, and the value."""


@runtime_checkable
class Indexed(Protocol):
    """Anything with a length and items, such as a Hugging Face or torch dataset."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


Source: TypeAlias = str | Path | Sequence[str | Path | Mapping[str, Any]] | Indexed


class LazyRows:
    """The rows of an indexed dataset, read and checked on access."""

    def __init__(self, source: Indexed, prompt_key: str | None) -> None:
        self._source = source
        self._prompt_key = prompt_key
        if len(source) > 0:
            _ = self[0]  # so that a wrong `prompt_key` fails before the training begins

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Row:
        where = f"row {index} of the {type(self._source).__name__}"
        try:
            value = self._source[index]
        except KeyError as error:
            fix = "A table of pandas is given as table.to_dict('records')."
            raise ConfigError(f"{where} cannot be read: KeyError {error}. {fix}") from error
        return read_row(value, self._prompt_key, where)


def read_rows(source: Source, prompt_key: str | None) -> list[Row] | LazyRows:
    """Return the rows of a source. Rows of files and lists are checked now, others when read.

    Without a `prompt_key` the rows are taken as they are: an environment reads them.
    """
    rows: list[Row] | LazyRows
    if isinstance(source, str | Path):
        source = [Path(source)]
    if isinstance(source, list | tuple):
        is_files = len(source) > 0 and all(map(is_file_name, source))
        listed = ((f"row {number} of the list", value) for number, value in enumerate(source))
        located = read_files(source) if is_files else listed
        rows = [read_row(value, prompt_key, where) for where, value in located]
    elif isinstance(source, Indexed) and not isinstance(source, Mapping):
        rows = LazyRows(source, prompt_key)
    else:
        raise ConfigError(
            f"the source of a dataset is {source!r:.100} ({type(source).__name__}), expected a "
            f"file ({', '.join(FILE_KINDS)}) or a list of files, a list of texts or dicts, or an "
            "object with a length that gives dicts by number, such as one split of a Hugging Face "
            "dataset: source['train']. Collect what comes one by one: list(source)."
        )
    if not rows:
        names = ", ".join(map(str, source)) if isinstance(source, list) else type(source).__name__
        raise ConfigError(f"there are no rows in {names or 'the list'}")
    return rows


def read_row(value: object, prompt_key: str | None, where: str) -> Row:
    """Return a row with its `prompt`, which is text or a list of messages."""
    if isinstance(value, str):
        value = {prompt_key or "prompt": value}
    if not isinstance(value, Mapping):
        got = f"{value!r:.100} ({type(value).__name__})"
        raise ConfigError(f"{where} is {got}, expected a text or a dict")
    row = dict(value)
    if prompt_key is None:
        return row
    if prompt_key not in row:
        hint = did_you_mean(prompt_key, map(str, row))
        fix = "Name the column of the prompt: the setting dataset.prompt_key, or prompt_key=..."
        raise ConfigError(f"{where} has no {prompt_key!r}. {hint} {fix}")
    prompt = row[prompt_key]
    # A table of pandas holds lists as arrays.
    row["prompt"] = prompt.tolist() if isinstance(prompt, np.ndarray) else prompt
    try:
        is_empty = not read_prompt(row).text.strip()
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    if is_empty:
        raise ConfigError(f"{where}: the prompt is empty: {prompt!r:.100}")
    return row


def is_file_name(value: object) -> bool:
    """Return whether a value is a path, or text that ends like one and has no spaces."""
    if isinstance(value, str):
        return value.endswith(FILE_KINDS) and len(value.split()) == 1
    return isinstance(value, Path)


def read_tasks(path: str, split: str | None) -> Iterator[Located] | None:
    """Yield the tasks of a name such as `openenv:URL`; None if it names files."""
    prefix, _, rest = path.partition(":")
    if prefix not in TASK_SOURCES:
        return None
    find_rows = import_object(TASK_SOURCES[prefix], is_built_in=True)
    return ((f"{path}, task {n}", row) for n, row in enumerate(find_rows(rest, split)))


def read_files(paths: Iterable[str | Path]) -> Iterator[Located]:
    """Yield the rows of all files in order, each with its location for error messages."""
    readers = {".jsonl": _read_lines, ".json": _read_array, ".parquet": _read_parquet}
    for path in (Path(path).expanduser() for path in paths):
        if path.suffix not in FILE_KINDS:
            raise ConfigError(
                f"{str(path)!r} is not a file of a supported type: {', '.join(FILE_KINDS)}. "
                "A single prompt goes into a list: [prompt]; a table is given as its rows: "
                "pandas.read_csv(path).to_dict('records'); a dataset of the Hugging Face hub as "
                "datasets.load_dataset(name, split='train')."
            )
        if not path.is_file():
            raise ConfigError(f"there is no file {path} (looked in {Path.cwd()})")
        try:
            yield from readers[path.suffix](path)
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error


def _read_lines(path: Path) -> Iterator[Located]:
    """Yield one JSON value per line; empty lines are skipped."""
    # In bytes, whose lines end with line feeds alone: JSON may contain U+2028 and the like.
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if data := line.strip():
                yield f"{path}, line {number}", parse_json(data, f"{path}, line {number}")


def _read_array(path: Path) -> Iterator[Located]:
    values = parse_json(path.read_bytes(), str(path))
    if not isinstance(values, list):
        expected = "a list of rows. Rows of one line each go into a .jsonl file."
        raise ConfigError(f"{path} holds a {type(values).__name__}, expected {expected}")
    for number, value in enumerate(values):
        yield f"{path}, row {number}", value


def _read_parquet(path: Path) -> Iterator[Located]:
    from pyarrow import ArrowException, parquet  # late: most datasets are JSON

    try:
        with parquet.ParquetFile(path) as file:
            rows = (row for batch in file.iter_batches() for row in batch.to_pylist())
            for number, row in enumerate(rows):
                yield f"{path}, row {number}", row
    except (ArrowException, OSError, ValueError, OverflowError) as error:
        # A damaged file raises any of these.
        raise ConfigError(f"{path} cannot be read as Parquet: {error}") from error
