"""The doctor: reads a run's metrics as they come, and reports what is wrong, why, and what to do.

>>> doctor = Doctor()
>>> sick = {"reward": 0.0, "reward_std": 0.0, "success": 0.0}
>>> [finding.code for _ in range(9) for finding in doctor.look(sick)]
['constant-reward']

Causes come first: what another finding explains stands under that one. What is reported follows
from the metrics alone, so a resumed run that shows it the old ones first gets the same. It would
rather be silent than cry wolf: most checks wait for several steps, and are silent while the reward
rises.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from turnwise.runs.doctor.checks import CHECKS, Check
from turnwise.runs.doctor.evidence import (
    AFTER_SHARED_ROWS,
    example_of,
    rows_trained_on,
    why_stopped,
)
from turnwise.runs.doctor.history import History
from turnwise.runs.metrics_log import MetricsLog, numbers_of
from turnwise.runs.run_folder import RunFolder

__all__ = ["CHECKS", "STOPPED", "Check", "Doctor", "Finding", "diagnose", "findings", "present"]

STOPPED = "stopped"
"""The finding of a run that an error ended; all others follow from the metrics."""
NUM_REPEAT = 50
"""A finding that lasts is reported again after so many steps."""
NUM_GONE = 10
"""One that comes back is reported again if it was gone for so many."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, and what follows from it."""

    code: str
    """Its short name, for programs: `entropy-collapse`."""
    text: str
    """What was seen, with numbers."""
    fix: str
    """What to try."""
    consequences: tuple[Finding, ...] = ()
    """Other findings, which this one explains."""
    example: str | None = None
    """An episode that shows it, by the name that the viewer gives it: `train-5-0`."""

    @property
    def because(self) -> str:
        """Which findings this one explains, in words; empty if there are none."""
        names = ", ".join(finding.code for finding in self.consequences)
        return f"Because of this: {names}." if names else ""

    @property
    def cure(self) -> str:
        """The former name of `fix`."""
        return self.fix

    def __str__(self) -> str:
        return " ".join(text for text in (self.text, self.because, self.fix) if text)


class Doctor:
    """Looks at each step's metrics, in order, and reports what is new."""

    def __init__(self) -> None:
        self._history = History()
        self._seen: dict[str, int] = {}
        self._said: dict[str, int] = {}
        self._explained: dict[str, int] = {}
        """When a finding last was the consequence of another."""

    def add(self, metrics: Mapping[str, float]) -> None:
        """Take a step in without looking for anything, which is faster."""
        self._history.add(metrics)

    def look(self, metrics: Mapping[str, float]) -> list[Finding]:
        """What to report after this step. A finding is reported when it begins, again every 50
        steps while it lasts, and when it returns after 10 steps without it."""
        self.add(metrics)
        now = self._history.num_steps
        found = self.present()
        self._explained |= {one.code: now for finding in found for one in finding.consequences}
        said = [finding for finding in found if self._is_news(finding.code, now)]
        self._seen |= {finding.code: now for finding in found}
        self._said |= {finding.code: now for finding in said}
        return said

    def present(self) -> list[Finding]:
        """All that is wrong as of the last step, reported before or not; causes first."""
        if not self._history.steps:
            return []
        seen = ((check, check.see(self._history)) for check in CHECKS)
        return _arranged([(check, text) for check, text in seen if text], self._history)

    def _is_news(self, code: str, now: int) -> bool:
        if now - self._explained.get(code, -NUM_GONE) < NUM_GONE:
            return False  # its cause may be gone for a step or two
        if code not in self._said:
            return True
        return now - self._seen[code] > NUM_GONE or now - self._said[code] >= NUM_REPEAT


def _arranged(found: Sequence[tuple[Check, str]], history: History) -> list[Finding]:
    """Findings that nothing else explains, each with all that follow from it."""
    causes = {
        check.code: next(
            (other.code for other, _ in found if other.explains_here(check, history)), None
        )
        for check, _ in found
    }
    under: dict[str, list[Finding]] = {check.code: [] for check, _ in found}
    for check, text in found:
        first = check.code
        passed = {first}
        while (cause := causes[first]) is not None and cause not in passed:
            passed.add(first := cause)
        if first != check.code:
            under[first].append(Finding(check.code, text, check.fix))
    explained = {finding.code for findings in under.values() for finding in findings}
    return [
        Finding(check.code, text, check.fix, tuple(under[check.code]))
        for check, text in found
        if check.code not in explained
    ]


def diagnose(history: Iterable[Mapping[str, float]]) -> list[tuple[int, Finding]]:
    """What the doctor reports over a whole run: (step, finding)."""
    doctor = Doctor()
    return [
        (int(step) if math.isfinite(step := metrics.get("step", number)) else number, finding)
        for number, metrics in enumerate(history, 1)
        for finding in doctor.look(metrics)
    ]


def present(history: Iterable[Mapping[str, float]]) -> list[Finding]:
    """What is wrong as of the last of these steps; causes first."""
    doctor = Doctor()
    for metrics in history:
        doctor.add(metrics)
    return doctor.present()


def findings(run_folder: str | Path) -> list[Finding]:
    """What is wrong with a run as of its last step: causes first, each with an episode to look at.

    Empty if there are no metrics, and the run did not stop by an error.
    """
    folder = RunFolder(Path(run_folder))
    steps = (numbers_of(line) for line in MetricsLog(folder.metrics_file).read())
    found = [
        dataclasses.replace(finding, example=example_of(folder, finding.code))
        for finding in present(steps)
    ]
    if (shared := rows_trained_on(folder.facts)) is not None:
        found.append(Finding("shared-rows", shared, AFTER_SHARED_ROWS))
    stopped = why_stopped(folder)
    if stopped is None:
        return found
    text = f"After step {stopped[0]} the run stopped: {stopped[1]}"
    return [Finding(STOPPED, text, _AFTER_STOP), *found]


_AFTER_STOP = "Fix that and run the same command again: it resumes from the last checkpoint."
