"""Failed episodes, shown to the user as soon as they happen, not only counted."""

from __future__ import annotations

from collections.abc import Callable

from turnwise.episode import Collection, EpisodeResult
from turnwise.trainer.first_steps import FirstSteps


class FailureReport:
    """Shows the first failed episode of each kind; tells when a run begins with nothing else.

    In a mix of environments, one part with nothing else is enough.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._shown: set[tuple[str, str]] = set()
        self._first_steps = FirstSteps(say)
        self._is_new = False

    def look(self, played: Collection, *, is_first_step: bool) -> str | None:
        """Report what is new in the episodes of a step; return why the run must end, or None."""
        every = [*played, *played.dropped]
        self._is_new |= is_first_step
        if self._is_new:  # a resumed run was looked at when it began
            self._first_steps.look([result for result in every if not result.status.is_error])
        failed = [result for result in every if result.status.is_error]
        kinds = {_kind(result): result for result in reversed(failed)}
        if is_first_step:
            for part in sorted({result.part for result in every}):
                own = [result for result in every if result.part == part]
                if all(result.status.is_error for result in own) and len({*map(_kind, own)}) == 1:
                    whose = f"{part} in the first step" if part else "the first step"
                    return (
                        f"every episode of {whose} failed in the same way, so there is nothing to "
                        f"learn from.\n{_described(own[0])}"
                    )
        for kind, result in kinds.items():
            if kind not in self._shown:
                self._shown.add(kind)
                number = sum(_kind(other) == kind for other in failed)
                self._say(f"{number} of {len(every)} episodes failed: {_described(result)}")
        return None


def _kind(result: EpisodeResult) -> tuple[str, str]:
    """Where it failed, or how: the same line of the user's code is the same kind of failure."""
    where = "\n".join((result.traceback or "").splitlines()[:-1])
    return result.status.value, where or (result.error or "")


def _described(result: EpisodeResult) -> str:
    text = f"{result.status.value.replace('_', ' ')}: {result.error}"
    return text if result.traceback is None else f"{text}\n{result.traceback}"
