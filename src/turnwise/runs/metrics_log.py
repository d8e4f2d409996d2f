"""`metrics.jsonl`: one JSON object a line, one line a step."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Any, TypeAlias

from turnwise.errors import ConfigError

Metrics: TypeAlias = Mapping[str, float | int | str | bool]

_LOG = logging.getLogger("turnwise")


class MetricsLog:
    """A run's metrics in a file that a person and a program can read.

    The same metrics give the same bytes: keys in the order given, floats as short as they can be
    and still come back exactly.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def append(self, metrics: Metrics) -> None:
        """Write one line; when this returns, it is on the disk.

        JSON has no word for NaN and infinity: such a value is left out.
        """
        line = _encode(metrics)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a+b", buffering=0) as file:
                end = _mend(file, self.path)
                try:
                    _write_all(file, line)
                    os.fsync(file.fileno())
                except OSError:
                    file.truncate(end)  # half a line is worse than none
                    raise
        except OSError as error:
            raise ConfigError(_cannot_write(self.path, error)) from error

    def read(self) -> list[dict[str, Any]]:
        """Every line; none if there is no file. Half a line at the end, left by a crash, is told
        and left out; one that cannot be read anywhere else is an error."""
        return [values for _, values in self._lines()]

    def rewind(self, step: int) -> None:
        """Forget what came after a step, for a run that goes on from there.

        Then the file is, byte for byte, what it was when that step had been logged.
        """
        lines = self._lines()
        kept = b"".join(line + b"\n" for line, values in lines if values.get("step", step) <= step)
        if not self.path.exists() or self.path.stat().st_size == len(kept):
            return
        draft = self.path.with_name(f".{self.path.name}.draft")
        try:
            with open(draft, "wb") as file:
                file.write(kept)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self.path)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise ConfigError(_cannot_write(self.path, error)) from error

    def _lines(self) -> list[tuple[bytes, dict[str, Any]]]:
        """Each line as it stands, and what it says."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ConfigError(f"cannot read {self.path}: {error}") from error
        *ended, tail = data.split(b"\n")
        lines = []
        for number, line in enumerate(ended, start=1):
            values = _decode(line)
            if values is None:
                raise ConfigError(
                    f"{self.path}, line {number}: expected a JSON object, got {_start(line)}. "
                    "Mend or delete that line."
                )
            lines.append((line, values))
        if tail:
            values = _decode(tail)
            if values is None:
                _LOG.warning(
                    "%s ends in half a line, left by a crash; it is ignored: %s",
                    self.path,
                    _start(tail),
                )
            else:  # only its end is missing
                lines.append((tail, values))
        return lines


def _encode(metrics: Metrics) -> bytes:
    """
    >>> _encode({"step": 3, "reward": 0.1, "kl": math.nan})
    b'{"step": 3, "reward": 0.1}\\n'
    """
    kept = {}
    for name, value in metrics.items():
        if not isinstance(value, str | int | float):
            raise ConfigError(
                f"the metric {name!r} got a {type(value).__name__}, expected a number or text"
            )
        if not isinstance(value, float) or math.isfinite(value):
            kept[name] = value
    return json.dumps(kept).encode() + b"\n"


def _decode(line: bytes) -> dict[str, Any] | None:
    try:
        values = json.loads(line)
    except ValueError:  # no JSON, or no UTF-8
        return None
    return values if isinstance(values, dict) else None


def _mend(file: FileIO, path: Path) -> int:
    """Make a file end where a line ends; where that is."""
    size = file.seek(0, os.SEEK_END)
    if size == 0:
        return 0
    file.seek(size - 1)
    if file.read(1) == b"\n":
        return size
    data = path.read_bytes()
    start = data.rfind(b"\n") + 1
    if _decode(data[start:]) is None:
        _LOG.warning("%s ended in half a line, left by a crash; it was cut off", path)
        file.truncate(start)
        return start
    _write_all(file, b"\n")
    return size + 1


def _write_all(file: FileIO, data: bytes) -> None:
    while data:  # a full disk may take a part of it, and only then say no
        data = data[file.write(data) :]


def _start(line: bytes) -> str:
    text = line.decode("utf-8", "replace")
    return repr(text if len(text) <= 60 else f"{text[:60]}...")


def _cannot_write(path: Path, error: OSError) -> str:
    return (
        f"cannot write {path}: {error.strerror or error}. Free some space there, or choose another "
        "place with checkpoint.output_dir."
    )
