"""What a check of an environment found: each finding with its fix, all of them in a report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, and what to write instead.

    >>> print(Finding("error", "close", "close() raised ValueError", "Let it be called twice."))
    error [close] close() raised ValueError
      fix: Let it be called twice.
    """

    level: Level
    """An error breaks training; a warning makes it worse; a note is worth knowing."""
    check: str
    """The name of the check."""
    message: str
    """What was wrong, what was got, what was expected."""
    fix: str
    """The change that removes the problem."""

    @property
    def cure(self) -> str:
        """The former name of `fix`."""
        return self.fix

    def __str__(self) -> str:
        return f"{self.level} [{self.check}] {self.message}\n  fix: {self.fix}"


@dataclass
class CheckReport:
    """All findings about one environment; `ok` when none of them is an error."""

    environment: str
    """The name of what was checked."""
    findings: list[Finding] = field(default_factory=list)
    """What was found, in the order of the checks."""
    passed: list[str] = field(default_factory=list)
    """The checks that found nothing."""
    skipped: list[str] = field(default_factory=list)
    """The checks that make no sense before an earlier finding is fixed."""

    @property
    def ok(self) -> bool:
        """No errors; warnings and notes are allowed."""
        return not self.of_level("error")

    def of_level(self, level: Level) -> list[Finding]:
        """The findings of one level."""
        return [finding for finding in self.findings if finding.level == level]

    @property
    def summary(self) -> str:
        """One line: how many findings of each level."""
        counts = [
            f"{count} {level}{'s' if count > 1 else ''}"
            for level in ("error", "warning", "note")
            if (count := len(self.of_level(level)))
        ]
        return f"{self.environment}: {', '.join(counts) or 'no findings'}"

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def __bool__(self) -> bool:
        """As `ok`, so that `assert check_env(env)` reads well; not whether there are findings."""
        return self.ok

    def __str__(self) -> str:
        lines = [self.summary, *(str(finding) for finding in self.findings)]
        if self.skipped:
            lines.append(f"not run until this is fixed: {', '.join(self.skipped)}")
        return "\n".join(lines)
