"""Reads a run's metrics and the doctor's findings, each time from where it last stopped."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

from turnwise.bounded_files import opened
from turnwise.errors import ConfigError
from turnwise.runs.doctor import Doctor, Finding, settings_if_readable
from turnwise.runs.headline import Headline, headline, is_number, kl_is_informative
from turnwise.runs.metrics_log import MAX_LINE_BYTES, decode_metrics
from turnwise.runs.run_folder import RunFolder

MAX_BYTES = 2**28
"""The limit of one file; later lines are not shown."""
_NUM_REMEMBERED = 256
"""Bytes before the current offset that are compared: a rewritten file has others there."""


class MetricsReader:
    """Reads a `metrics.jsonl` that grows, and that is rewound when its run resumes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._examining = threading.Lock()
        self._age = 0
        """How often the file was read from its beginning."""
        self._forget()

    def _forget(self) -> None:
        self._age += 1
        self.steps: list[dict[str, Any]] = []
        self._headline: tuple[object, Headline | None] | None = None
        self._findings: list[dict[str, Any]] = []
        self._inode = -1
        self._offset = 0
        self._before = b""
        self._doctor = Doctor()
        self._num_examined = 0
        self._num_lines = 0
        self._num_bad_lines = 0
        self._first_problem: str | None = None

    @property
    def problem(self) -> str | None:
        """The first line that cannot be read, and how many others; the rest is shown."""
        others = self._num_bad_lines - 1
        more = f" ({others} more lines cannot be read)" if others > 0 else ""
        return None if self._first_problem is None else f"{self._first_problem}{more}"

    def update(self, path: Path | None) -> None:
        """Read the new lines."""
        with self._lock:
            try:
                self._read_on(path)
            except FileNotFoundError:  # no metrics yet, or no longer
                self._forget()
            except ConfigError as error:
                self._forget()
                self._first_problem = str(error)

    def _read_on(self, path: Path | None) -> None:
        if path is None:
            raise FileNotFoundError
        with opened(path, 2**62) as file:
            inode = os.fstat(file.fileno()).st_ino
            start = max(self._offset - _NUM_REMEMBERED, 0)
            file.seek(start)
            if inode != self._inode or file.read(self._offset - start) != self._before:
                self._forget()
                self._doctor = Doctor(settings_if_readable(RunFolder(path.parent)))
                file.seek(0)
            self._inode = inode
            data = file.read(MAX_BYTES - self._offset)
            is_cut = bool(file.read(1))
        whole = data.rfind(b"\n") + 1
        if len(data) - whole > MAX_LINE_BYTES:  # not a line that is being written
            whole = len(data)
        for line in data[:whole].removesuffix(b"\n").split(b"\n") if whole else ():
            self._add_line(path, line)
        if is_cut and self._first_problem is None:
            self._first_problem = f"{path} is larger than {MAX_BYTES:,} bytes: the rest is left out"
        self._offset += whole
        self._before = (self._before + data[:whole])[-_NUM_REMEMBERED:]

    def _add_line(self, path: Path, line: bytes) -> None:
        self._num_lines += 1
        try:
            found = decode_metrics(line)
            self.steps.append(found)
        except ConfigError as error:
            self._num_bad_lines += 1
            if self._first_problem is None:
                self._first_problem = f"{path}, line {self._num_lines}: {error}"

    @property
    def last(self) -> dict[str, Any]:
        return self.steps[-1] if self.steps else {}

    def headline(self, evaluated_on: str | None) -> Headline | None:
        """Return the headline of the run; computed again only when there are new steps."""
        with self._lock:
            asked = self._age, len(self.steps), evaluated_on
            if self._headline is None or self._headline[0] != asked:
                self._headline = asked, headline(self.steps, evaluated_on)
            return self._headline[1]

    def at(self, step: int) -> dict[str, Any]:
        """Return the metrics of a step; empty if there are none."""
        return next((s for s in reversed(self.steps) if s.get("step") == step), {})

    def columns(self, since: int = 0) -> dict[str, Any]:
        """Return each metric as a column, with None where a step has no value.

        `minor` are metrics that say nothing in this run, and are drawn only when asked for.
        """
        with self._lock:
            steps = [s for s in self.steps if s.get("step", 0) > since]
            minor = [] if kl_is_informative(self.steps) else ["kl"]
        names = dict.fromkeys(name for step in steps for name in step if name != "step")
        series = {
            name: [v if is_number(v := step.get(name)) else None for step in steps]
            for name in names
        }
        shown = {"steps": [step.get("step") for step in steps], "series": series}
        return {**shown, "minor": minor}

    def examine(self, seconds: float) -> bool:
        """Let the doctor examine more steps for a while; return whether it has new findings.

        Thousands of steps take long, so that a request waits only for a part of them.
        """
        end, num_found = time.monotonic() + seconds, 0
        with self._examining:
            while time.monotonic() < end:
                with self._lock:
                    age, place = self._age, self._num_examined
                    metrics = self.steps[place] if place < len(self.steps) else None
                    doctor = self._doctor
                if metrics is None:
                    break
                found = doctor.look(metrics)
                with self._lock:
                    if age != self._age:  # the run was rewound in between
                        continue
                    step = metrics.get("step", place + 1)
                    self._findings += [_payload(step, finding) for finding in found]
                    self._num_examined += 1
                    num_found += len(found)
        return num_found > 0

    def findings(self) -> dict[str, Any]:
        """Return the doctor's findings so far, each with its step."""
        with self._lock:
            examined = {"steps": self._num_examined, "of": len(self.steps)}
            return {"findings": list(self._findings), "examined": examined}


def _payload(step: float, finding: Finding) -> dict[str, Any]:
    return {
        "step": step,
        "name": finding.code,
        "severity": "warning",
        "text": f"{finding.text} {finding.because}".rstrip(),
        "fix": finding.fix,
    }
