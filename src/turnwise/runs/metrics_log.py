"""`metrics.jsonl`: one JSON object per line, one line per step."""

import json
import logging
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnwise.errors import ConfigError
from turnwise.json_files import parse_json, show_start
from turnwise.whole_files import explained, write_whole

_LOG = logging.getLogger("turnwise")
_NUM_COMPARED = 256


class MetricsLog:
    """Appends and reads the metrics of a run.

    The same metrics give the same bytes: keys in the order given, floats as short as they can be
    and still come back exactly.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def append(self, metrics: Mapping[str, Any]) -> None:
        """Append one line, and sync it to the disk. NaN and infinity are left out."""
        kept = {}
        for name, value in metrics.items():
            if not isinstance(value, str | int | float):
                kind = type(value).__name__
                raise ConfigError(f"the metric {name!r} got a {kind}, expected a number or text")
            if isinstance(value, str | int) or math.isfinite(value):
                kept[name] = value
        with explained(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a+b") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(size - 1, 0))
                if file.read() not in (b"\n", b""):
                    lines = self.path.read_bytes()
                    last = lines[lines.rfind(b"\n") + 1 :]
                    if _is_whole(last):
                        file.write(b"\n")
                    else:
                        _LOG.warning("%s: half a line, left by a crash, was cut off", self.path)
                        file.truncate(size - len(last))
                file.write(json.dumps(kept).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())

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
            _LOG.warning("%s ends in half a line, left by a crash; it is ignored", self.path)
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
        if len(data) != len(kept):
            with explained(self.path):
                write_whole(self.path, kept)


class MetricsReader:
    """Reads a `metrics.jsonl` that may grow, each time from where it last stopped."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.unfinished = b""
        """What follows the last whole line: it may just be written, or be left by a crash."""
        self.problem: str | None = None
        """The first line that cannot be read."""
        self._num_lines = self._offset = 0
        self._inode, self._before = -1, b""

    def update(self, path: Path) -> bool:
        """Read the new lines; return whether all are new, since the run was rewound."""
        with open(path, "rb") as file:
            inode = os.fstat(file.fileno()).st_ino
            # A file that was rewritten has other bytes before the place where the last one ended.
            start = max(self._offset - _NUM_COMPARED, 0)
            file.seek(start)
            is_rewound = inode != self._inode or file.read(self._offset - start) != self._before
            if is_rewound:
                self._begin()
                file.seek(0)
            self._inode = inode
            data = file.read()
        last = data[data.rfind(b"\n") + 1 :]
        self.unfinished = b"" if _is_whole(last) else last
        new = data.removesuffix(self.unfinished)
        # The newline that the last line did not have yet when it was read.
        is_continued = self._before[-1:] not in (b"\n", b"")
        for line in new.removeprefix(b"\n" if is_continued else b"").splitlines():
            self._num_lines += 1
            try:
                self.lines.append(_decode(line, f"{path}, line {self._num_lines}"))
            except ConfigError as error:
                self.problem = self.problem or f"{error}. Correct or delete that line."
        self._offset += len(new)
        self._before = (self._before + new)[-_NUM_COMPARED:]
        return is_rewound


def _is_whole(line: bytes) -> bool:
    """Return whether a line without its newline is complete: an editor may have left that out."""
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _decode(line: bytes, where: str) -> dict[str, Any]:
    values = parse_json(line, where)
    if not isinstance(values, dict) or not isinstance(values.get("step", 0), int):
        raise ConfigError(
            f"{where}: expected a JSON object with a whole step, got {show_start(line)}"
        )
    for name, value in values.items():
        if value is not None and not isinstance(value, str | int | float):
            raise ConfigError(f"{where}: {name!r} got {value!r:.60}, expected a number or text")
    return {name: value for name, value in values.items() if value is not None}
