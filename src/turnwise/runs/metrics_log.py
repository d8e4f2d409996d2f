"""`metrics.jsonl`: one JSON object per line, one line per step."""

import errno
import json
import logging
import math
import os
from collections.abc import Iterable, Mapping
from io import FileIO
from pathlib import Path
from typing import Any, TypeAlias

from turnwise.bounded_files import opened, parse_json, start_of
from turnwise.errors import ConfigError
from turnwise.whole_files import disk_reason, write_whole

MetricsLine: TypeAlias = Mapping[str, float | int | str | bool]

_LOG = logging.getLogger("turnwise")

MAX_BYTES = 2**28
MAX_LINE_BYTES = 2**20
_NUM_COMPARED = 256
_MAX_INTEGER = 2**1023
"""A larger integer does not fit into a float."""


class MetricsLog:
    """Appends and reads the metrics of a run.

    The same metrics give the same bytes: keys in the order given, floats as short as they can be
    and still come back exactly.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def append(self, metrics: MetricsLine) -> None:
        """Append one line, and sync it to the disk. NaN and infinity are left out."""
        kept = {}
        for name, value in metrics.items():
            is_too_large = isinstance(value, int) and abs(value) >= _MAX_INTEGER
            if is_too_large or not isinstance(value, str | int | float):
                kind = "number of more than 300 digits" if is_too_large else type(value).__name__
                raise ConfigError(f"the metric {name!r} got a {kind}, expected a number or text")
            if not isinstance(value, float) or math.isfinite(value):
                kept[name] = value
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a+b", buffering=0) as file:
                end = _cut_broken_line(file, self.path)
                try:
                    line = json.dumps(kept).encode() + b"\n"
                    while line:  # a full disk may take a part of it, and only then say no
                        line = line[file.write(line) :]
                    os.fsync(file.fileno())
                except OSError:
                    file.truncate(end)  # half a line is worse than none
                    raise
        except OSError as error:
            raise ConfigError(_cannot_write(self.path, error)) from error

    def read(self) -> list[dict[str, Any]]:
        """Return every line; none if there is no file. An incomplete last line, left by a crash, is
        skipped with a warning; any other invalid line raises `ConfigError`."""
        reader = MetricsReader()
        try:
            reader.update(self.path)
        except FileNotFoundError:
            return []
        if reader.problem is not None:
            raise ConfigError(reader.problem)
        if reader.unfinished:
            try:
                reader.lines.append(decode_metrics(reader.unfinished))  # only its end is missing
            except ConfigError:
                _LOG.warning(
                    "%s ends in half a line, left by a crash; it is ignored: %s",
                    self.path,
                    start_of(reader.unfinished),
                )
        return reader.lines

    def rewind(self, step: int) -> None:
        """Remove the lines after a step, for a run that resumes from there.

        The file is then byte for byte as it was after that step.
        """
        values = self.read()
        if not self.path.exists():
            return
        data = self.path.read_bytes()
        lines = zip(data.split(b"\n"), values, strict=False)
        kept = b"".join(line + b"\n" for line, known in lines if known.get("step", step) <= step)
        if len(data) == len(kept):
            return
        try:
            write_whole(self.path, kept)
        except OSError as error:
            raise ConfigError(_cannot_write(self.path, error)) from error


class MetricsReader:
    """Reads a `metrics.jsonl` that may grow, each time from where it last stopped."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.unfinished = b""
        """What follows the last whole line: it may just be written."""
        self._first_problem: str | None = None
        self._num_lines = self._num_bad_lines = 0
        self._inode, self._offset, self._before = -1, 0, b""

    @property
    def problem(self) -> str | None:
        """The first line that cannot be read, and how many others there are."""
        others = self._num_bad_lines - 1
        more = f" ({others} more lines cannot be read)" if others > 0 else ""
        return None if self._first_problem is None else f"{self._first_problem}{more}"

    def update(self, path: Path) -> bool:
        """Read the new lines; return whether all are new, since the run was rewound."""
        with opened(path, 2**62) as file:
            inode = os.fstat(file.fileno()).st_ino
            # A file that was rewritten has other bytes before the place where the last one ended.
            start = max(self._offset - _NUM_COMPARED, 0)
            file.seek(start)
            is_rewound = inode != self._inode or file.read(self._offset - start) != self._before
            if is_rewound:
                self._begin()
                file.seek(0)
            self._inode = inode
            data = file.read(MAX_BYTES - self._offset)
            is_cut = bool(file.read(1))
        whole = data.rfind(b"\n") + 1
        if len(data) - whole > MAX_LINE_BYTES:  # not a line that is being written
            whole = len(data)
        for line in data[:whole].removesuffix(b"\n").split(b"\n") if whole else ():
            self._num_lines += 1
            try:
                self.lines.append(decode_metrics(line))
            except ConfigError as error:
                self._num_bad_lines += 1
                if self._first_problem is None:
                    where = f"{path}, line {self._num_lines}"
                    self._first_problem = f"{where}: {error}. Correct or delete that line."
        if is_cut and self._first_problem is None:
            self._first_problem = f"{path} is larger than {MAX_BYTES:,} bytes: the rest is left out"
        self.unfinished = data[whole:]
        self._offset += whole
        self._before = (self._before + data[:whole])[-_NUM_COMPARED:]
        return is_rewound


def decode_metrics(line: bytes) -> dict[str, Any]:
    """The metrics of one line, or a `ConfigError` that says why it holds none."""
    if len(line) > MAX_LINE_BYTES:
        raise ConfigError(f"it has {len(line):,} bytes, expected at most {MAX_LINE_BYTES:,}")
    try:
        values = parse_json(line, "it")
    except ConfigError as error:
        raise ConfigError(f"expected a JSON object, got {start_of(line)} ({error})") from None
    if not isinstance(values, dict):
        raise ConfigError(f"expected a JSON object, got {start_of(line)}")
    for name, value in values.items():
        is_integer = isinstance(value, int) and abs(value) < _MAX_INTEGER
        if name == "step" and (not is_integer or isinstance(value, bool)):
            raise ConfigError(f"step got {value!r:.60}, expected a whole number")
        if value is not None and not is_integer and not isinstance(value, float | str):
            raise ConfigError(f"{name!r:.60} got {value!r:.60}, expected a number or text")
    return {name: value for name, value in values.items() if value is not None}


def numbers_of(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics that are numbers."""
    return {name: value for name, value in metrics.items() if isinstance(value, int | float)}


def missing_steps(history: Iterable[Mapping[str, Any]], num_steps: int) -> str:
    """Return which of the first `num_steps` steps have no line; empty if all have one.

    >>> missing_steps([{"step": 1}, {"step": 4}], 6)
    'steps 2 to 3 and 5 to 6'
    """
    seen = {metrics.get("step") for metrics in history}
    missing = [step for step in range(1, num_steps + 1) if step not in seen]
    starts = [step for step in missing if step == 1 or step - 1 in seen]
    ends = [step for step in missing if step == num_steps or step + 1 in seen]
    ranges = [str(a) if a == b else f"{a} to {b}" for a, b in zip(starts, ends, strict=True)]
    shown = ranges if len(ranges) <= 5 else [*ranges[:4], f"{len(ranges) - 4} more ranges"]
    words = " and ".join(filter(None, (", ".join(shown[:-1]), *shown[-1:])))
    return f"{'step' if len(missing) == 1 else 'steps'} {words}" if missing else ""


def _cut_broken_line(file: FileIO, path: Path) -> int:
    """Make a file end where a line ends; where that is."""
    size = file.seek(0, os.SEEK_END)
    if size == 0:
        return 0
    file.seek(size - 1)
    if file.read(1) == b"\n":
        return size
    data = path.read_bytes()
    start = data.rfind(b"\n") + 1
    try:
        decode_metrics(data[start:])
    except ConfigError:
        _LOG.warning("%s ended in half a line, left by a crash; it was cut off", path)
        file.truncate(start)
        return start
    file.write(b"\n")
    return size + 1


def _cannot_write(path: Path, error: OSError) -> str:
    return f"cannot write {path}: {disk_reason(path, error.errno or errno.EIO)}."
