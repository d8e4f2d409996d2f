"""Failed episodes, shown to the user as soon as they happen, not only counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from turnwise.episode import Collection, EpisodeResult
from turnwise.trainer.first_steps import FirstSteps

Kind: TypeAlias = tuple[str, str]
"""How an episode failed: its status, and where in the user's code."""

MOST_FAILED_STEPS = 5
"""After so many steps in a row of which nothing can be learned a run ends."""


class FailureReport:
    """Shows the first failed episode of each kind; reports when nothing else comes any more.

    That is: every episode of the first step failed in the same way, or every episode of five steps
    in a row. In a mix of environments, one of them with nothing else is enough.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._shown: set[Kind] = set()
        self._first_steps = FirstSteps(say)
        self._is_new = False
        self._in_a_row: dict[str, tuple[Kind, int]] = {}
        """By environment: how all its episodes failed, and in how many steps in a row."""

    def look(self, played: Collection, *, is_first_step: bool) -> str | None:
        """Report what is new in the episodes of a step; return why the run must end, or None."""
        every = [*played, *played.dropped]
        self._is_new |= is_first_step
        if self._is_new:  # a resumed run was looked at when it began
            self._first_steps.look([result for result in every if not result.status.is_error])
        for part in sorted({result.part for result in every}):
            own = [result for result in every if result.part == part]
            if (why := self._why_hopeless(part, own, is_first_step=is_first_step)) is not None:
                return f"{why}\n{_described(own[0])}"
        failed = [result for result in every if result.status.is_error]
        kinds = {_kind(result): result for result in reversed(failed)}
        for kind, result in kinds.items():
            if kind not in self._shown:
                self._shown.add(kind)
                number = sum(_kind(other) == kind for other in failed)
                self._say(f"{number} of {len(every)} episodes failed: {_described(result)}")
        return None

    def _why_hopeless(
        self, part: str, own: Sequence[EpisodeResult], *, is_first_step: bool
    ) -> str | None:
        """Why nothing more is to be learned in this environment; a step without it is no sign."""
        kinds = {_kind(result) for result in own}
        if len(kinds) > 1 or not own[0].status.is_error:
            self._in_a_row.pop(part, None)
            return None
        (kind,) = kinds
        before, number = self._in_a_row.get(part, (kind, 0))
        number = number + 1 if before == kind else 1
        self._in_a_row[part] = kind, number
        if is_first_step:
            whose = f"{part} in the first step" if part else "the first step"
            return (
                f"every episode of {whose} failed in the same way, so there is nothing to learn "
                "from."
            )
        if number < MOST_FAILED_STEPS:
            return None
        whose = f" of {part}" if part else ""
        return (
            f"every episode{whose} failed in the same way in {number} steps in a row, so there is "
            "nothing more to learn from."
        )


def _kind(result: EpisodeResult) -> Kind:
    """Where it failed, or how: the same line of the user's code is the same kind of failure."""
    where = "\n".join((result.traceback or "").splitlines()[:-1])
    return result.status.value, where or (result.error or "")


def _described(result: EpisodeResult) -> str:
    text = f"{result.status.value.replace('_', ' ')}: {result.error}"
    return text if result.traceback is None else f"{text}\n{result.traceback}"
