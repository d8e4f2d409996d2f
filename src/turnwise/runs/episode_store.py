"""Stores the episodes of a run: one Parquet file per step, written whole."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import parquet

from turnwise.errors import ConfigError, describe_error
from turnwise.runs.episode_table import (
    BASELINES_KEY,
    FLOAT_COLUMNS,
    FORMAT,
    FORMAT_KEY,
    PHASES_KEY,
    Columns,
    Phase,
    StoredEpisode,
    episodes_to_table,
    table_to_episodes,
)
from turnwise.whole_files import remove_abandoned, write_whole

if TYPE_CHECKING:
    from turnwise.episode import EpisodeResult

_LOG = logging.getLogger("turnwise")
_NAME = re.compile(r"([a-z][a-z-]*)-(\d{6,18})\.parquet")
ROW_GROUP = 128
"""Episodes that are read together: few enough that one of them is quickly shown."""


class EpisodeStore:
    """The episodes of a run in a folder, up to a budget of bytes.

    Failed writes never stop a run: they are logged once.
    """

    def __init__(self, folder: str | Path, budget_bytes: float) -> None:
        self.folder = Path(folder)
        self.budget_bytes = budget_bytes
        self._used: int | None = None
        """Bytes of all files; None: not counted yet."""
        self._is_full = False
        self._has_warned = False

    def write(
        self,
        step: int,
        results: Sequence[EpisodeResult],
        columns: Columns | None = None,
        *,
        kind: str = "train",
        began: float | None = None,
        phases: Sequence[Phase] = (),
        baselines: Mapping[str, float] | None = None,
    ) -> None:
        """Write the episodes of a step; the arguments are those of `episodes_to_table`."""
        if self.budget_bytes <= 0 or self._is_full:
            return
        path = self.folder / file_name(kind, step)
        try:
            table = episodes_to_table(
                results,
                columns,
                step=step,
                kind=kind,
                began=began,
                phases=phases,
                baselines=baselines,
            )
            data = _encode(table)
            if self._fits(path, len(data)):
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, data)
        except Exception as error:  # an `info` is the environment's own object
            self._used = None
            if not self._has_warned:
                self._has_warned = True
                what = "The episodes of step %d could not be stored in %s: %s (logged only once)"
                _LOG.warning(what, step, self.folder, describe_error(error))

    def read(self, step: int, kind: str = "train") -> list[StoredEpisode]:
        """Return the episodes of a step in the order in which they were written."""
        return table_to_episodes(read_table(self._existing(step, kind)))

    def baselines(self, step: int) -> dict[str, float] | None:
        """Return the rewards of a step's greedy episodes; None if there were none."""
        rewards: dict[str, float] | None = _metadata(self._existing(step, "train"), BASELINES_KEY)
        return rewards

    def steps(self, kind: str = "train") -> list[int]:
        """Return the steps that have episodes."""
        return sorted(step for its_kind, step in episode_files(self.folder) if its_kind == kind)

    def rewind(self, step: int) -> None:
        """Remove the episodes of later steps, for a run that resumes from this one."""
        for (_, its_step), path in episode_files(self.folder).items():
            if its_step > step:
                path.unlink(missing_ok=True)
        remove_abandoned(self.folder)
        self._used, self._is_full = None, False

    def _existing(self, step: int, kind: str) -> Path:
        path = self.folder / file_name(kind, step)
        if not path.exists():
            steps = ", ".join(map(str, self.steps(kind))) or "none"
            raise ConfigError(
                f"{self.folder} has no {kind} episodes of step {step}. Steps that it has: {steps}."
            )
        return path

    def _fits(self, path: Path, size: int) -> bool:
        if self._used is None:
            self._used = sum(file.stat().st_size for file in episode_files(self.folder).values())
        used = self._used - (path.stat().st_size if path.exists() else 0)
        self._is_full = used + size > self.budget_bytes
        if self._is_full:
            what = (
                "%s holds %.3g GB of episodes, and the next step exceeds the budget of "
                "%.3g GB: no more episodes are stored. To allow more, raise logging.episodes_gb."
            )
            _LOG.warning(what, self.folder, used / 2**30, self.budget_bytes / 2**30)
        else:
            self._used = used + size
        return not self._is_full


def file_name(kind: str, step: int) -> str:
    """Return the name of a file of episodes.

    >>> file_name("train", 12), file_name("eval-greedy", 12)
    ('step-000012.parquet', 'eval-greedy-000012.parquet')
    """
    return f"{'step' if kind == 'train' else kind}-{step:06d}.parquet"


def episode_files(folder: Path) -> dict[tuple[str, int], Path]:
    """Return the files of episodes in a folder by kind and step."""
    files = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        if match := _NAME.fullmatch(path.name):
            files["train" if match[1] == "step" else match[1], int(match[2])] = path
    return files


@contextmanager
def open_table(path: Path) -> Iterator[parquet.ParquetFile]:
    """Open a file of episodes, of which little is read.

    Whatever is wrong with it, also later, is a `ConfigError` that names the file.
    """
    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            number = (file.schema_arrow.metadata or {}).get(FORMAT_KEY.encode(), b"unknown")
            if number != str(FORMAT).encode():
                raise ConfigError(f"{path} has the format {number.decode()}, expected {FORMAT}")
            yield file
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # the last of a footer
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"{path} is no whole Parquet file: {reason:.300}") from error


def read_table(
    path: Path, columns: Sequence[str] | None = None, row: int | None = None
) -> pa.Table:
    """Return columns of a file of episodes, of all rows or of one; `IndexError` without it."""
    with open_table(path) as file:
        if row is None:
            return file.read(columns)
        for number in range(file.num_row_groups):
            size = file.metadata.row_group(number).num_rows
            if row < size:
                return file.read_row_group(number, columns).slice(row, 1)
            row -= size
    raise IndexError(row)


def read_phases(path: Path) -> list[Phase]:
    """Return the phases of a file's step; empty if they were not recorded."""
    return [(name, start, end) for name, start, end in _metadata(path, PHASES_KEY) or ()]


def _metadata(path: Path, key: str) -> Any:
    with open_table(path) as file:
        text = file.schema_arrow.metadata.get(key.encode())
        return None if text is None else json.loads(text)


def _encode(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    parquet.write_table(
        table,
        buffer,
        row_group_size=ROW_GROUP,
        compression="zstd",
        # Numbers compress better by their bytes, and texts without a dictionary before.
        use_byte_stream_split=[f"agents.list.element.{n}.list.element" for n in FLOAT_COLUMNS],
        use_dictionary=False,
        write_statistics=False,
        write_page_checksum=True,
    )
    return buffer.getvalue()
