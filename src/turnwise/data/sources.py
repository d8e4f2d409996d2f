"""Where rows come from: files, lists, and whatever can be counted and indexed."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias, overload, runtime_checkable

import numpy as np

from turnwise.data.files import FILE_KINDS, Placed, read_files
from turnwise.env.prompts import prompt_of
from turnwise.errors import ConfigError, did_you_mean

Row: TypeAlias = dict[str, Any]


@runtime_checkable
class Indexed(Protocol):
    """Anything with a length and items, such as a Hugging Face or torch dataset."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


Source: TypeAlias = str | Path | Sequence[str | Path | Mapping[str, Any]] | Indexed


def rows_of(source: Source, prompt_key: str | None) -> Sequence[Row]:
    """The rows of a source, each checked: at once if they are here already, else when asked for.

    Without a `prompt_key` the rows are taken as they are: an environment reads them.
    """
    if isinstance(source, str | Path):
        source = [Path(source)]
    rows: Sequence[Row]
    if isinstance(source, list | tuple):
        is_files = len(source) > 0 and all(map(is_file_name, source))
        placed = read_files(source) if is_files else _numbered(source)
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
        raise ConfigError(_no_source(source))
    if not rows:
        is_empty_list = isinstance(source, list | tuple) and not source
        name = "the list" if is_empty_list else str(source)
        raise ConfigError(f"there are no rows in {name:.200}")
    return rows


class LazyRows(Sequence[Row]):
    """Rows of somebody else's dataset, read and checked when they are asked for."""

    def __init__(self, source: Indexed, prompt_key: str | None) -> None:
        self._source = source
        self._prompt_key = prompt_key
        if len(source) > 0:
            self._read(0)  # a wrong name of the prompt is known before the training begins

    def __len__(self) -> int:
        return len(self._source)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        if isinstance(index, slice):
            return [self._read(number) for number in range(len(self))[index]]
        return self._read(range(len(self))[operator.index(index)])

    def _read(self, number: int) -> Row:
        place = f"row {number} of the {type(self._source).__name__}"
        try:
            value = self._source[number]
        except KeyError as error:
            if error.args != (number,):
                raise  # from within, and about something else
            raise ConfigError(
                f"{place} cannot be had by its number. "
                "A table of pandas is given as table.to_dict('records')."
            ) from None
        return read_row(value, self._prompt_key, place)


def read_row(value: object, prompt_key: str | None, place: str) -> Row:
    """A row with its `prompt` in place, a text or messages that an episode can open with."""
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
            f"{place}: the prompt is no text: {error}. Replace half surrogate pairs."
        ) from None
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from None
    return row


def _numbered(values: Iterable[object]) -> Iterable[Placed]:
    return ((f"row {number} of the list", value) for number, value in enumerate(values))


def is_file_name(value: object) -> bool:
    """A path; or a text that ends like one and has no spaces, which a prompt would have."""
    if isinstance(value, str):
        return value.endswith(FILE_KINDS) and len(value.split()) == 1
    return isinstance(value, Path)


def _no_source(source: object) -> str:
    fix = " Collect what comes one by one: list(source)." if isinstance(source, Iterable) else ""
    return (
        f"the source of a dataset is {source!r:.100} ({type(source).__name__}), expected a file "
        f"({', '.join(FILE_KINDS)}) or a list of files, a list of texts or dicts, or an object "
        "with a length that gives dicts by number, such as a split of a Hugging Face dataset." + fix
    )
