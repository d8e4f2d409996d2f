"""The findings of a check, each with its fix; the report of all of them."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from turnwise.errors import describe_error

Level = Literal["error", "warning", "note"]
_CHECKER_FOLDER = str(Path(__file__).parent)


@dataclass(frozen=True)
class Finding:
    """One problem, and what to write instead.

    >>> print(Finding("error", "close", "close() raised ValueError", "Let it be called twice."))
    error [close] close() raised ValueError
      fix: Let it be called twice.
    """

    level: Level
    """An error breaks training; a warning makes it worse; a note is worth knowing."""
    check: str
    """The name of the check."""
    message: str
    """The problem: what was got, and what was expected."""
    fix: str
    """The change that removes the problem."""

    def __str__(self) -> str:
        return f"{self.level} [{self.check}] {self.message}\n  fix: {self.fix}"


@dataclass
class CheckReport:
    """All findings about one environment; `ok` when none of them is an error."""

    environment: str
    """The name of what was checked."""
    findings: list[Finding] = field(default_factory=list)
    """All findings, in the order of the checks."""
    passed: list[str] = field(default_factory=list)
    """The checks that found nothing."""
    skipped: list[str] = field(default_factory=list)
    """The checks that make no sense before an earlier finding is fixed."""

    @property
    def ok(self) -> bool:
        """Whether there are no errors; warnings and notes are allowed."""
        return not self.of_level("error")

    def of_level(self, level: Level) -> list[Finding]:
        """Returns the findings of one level."""
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
        """Returns `ok`, so that `assert check_env(env)` works."""
        return self.ok

    def __str__(self) -> str:
        lines = [self.summary, *(str(finding) for finding in self.findings)]
        if self.skipped:
            lines.append(f"not run until this is fixed: {', '.join(self.skipped)}")
        return "\n".join(lines)


def shorten(value: object, width: int = 60) -> str:
    """Returns a `repr` that is short enough for a message."""
    text = repr(value)
    return text if len(text) <= width else f"{text[: width - 4]}...{text[-1]}"


def other_parser(action: str, parser: str) -> Finding:
    """Returns the finding of a tool call that only another parser reads."""
    return Finding(
        "warning",
        "parser",
        f"{shorten(action)} is a tool call in the format of the parser {parser!r}, which is not "
        "the one in use: it went to step() as text",
        f"Check with `--parser {parser}`, and train with `parser: {parser}`; or let the "
        "environment offer calls as the parser in use reads them.",
    )


def explain(error: BaseException) -> str:
    """Returns the error and the line that raised it, as one line of text."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(("<frozen", _CHECKER_FOLDER))
    ]
    if isinstance(error, SyntaxError) or not frames:  # a SyntaxError names the line itself
        return describe_error(error)
    return f"{describe_error(error)} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"
