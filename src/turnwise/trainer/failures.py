"""Failed and suspicious episodes, reported as soon as they are played."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from turnwise.episode import Collection, EpisodeResult
from turnwise.types import EpisodeStatus

FailureKind: TypeAlias = tuple[str, str]
"""How an episode failed: its status, and where in the user's code."""

MAX_FAILED_STEPS = 5
"""A run ends after this many consecutive steps from which nothing can be learned."""
_NUM_FIRST_STEPS = 2
_MIN_EPISODES = 8
"""Fewer episodes may have the same reward by chance."""

_LOOK_AT_REWARDS = (
    "Look at what the reward depends on (turnwise play --player random), or begin with an easier "
    "task or training.warm_start."
)
_LOOK_AT_AGENTS = (
    "Read the conversations (turnwise view). If the model cannot do the task, begin with an "
    "easier one, or let it imitate an expert first: Trainer(agent=..., expert=...) with "
    "training.warm_start: expert."
)


class FailureReport:
    """Reports the first failed episode of each kind, and when all episodes fail.

    A run must end when every episode of its first step failed in the same way, or every episode of
    five consecutive steps; in a mix, when this holds for one environment.
    """

    def __init__(self, say: Callable[[str], None], *, is_agent: bool = False) -> None:
        self._say = say
        self._reported: set[FailureKind] = set()
        self._notes: set[str] = set()
        self._first_steps = FirstSteps(say, is_agent=is_agent)
        self._is_new_run = False
        self._in_a_row: dict[str, tuple[FailureKind, int]] = {}
        """By environment: how all its episodes failed, and in how many consecutive steps."""

    def check(self, played: Collection, *, is_first_step: bool) -> str | None:
        """Report new kinds of failures of a step; return why the run must end, or None."""
        episodes = [*played, *played.dropped]
        self._is_new_run |= is_first_step
        if self._is_new_run:
            self._first_steps.check([result for result in episodes if not result.status.is_error])
        for environment in sorted({result.part for result in episodes}):
            own = [result for result in episodes if result.part == environment]
            if (why := self._why_stop(environment, own, is_first_step=is_first_step)) is not None:
                return f"{why}\n{described(own[0])}"
        note = cut_below_own_limit(episodes)
        if note is not None and note not in self._notes:
            self._notes.add(note)
            self._say(note)
        failed = [result for result in episodes if result.status.is_error]
        kinds = {_kind(result): result for result in reversed(failed)}
        for kind, result in kinds.items():
            if kind not in self._reported:
                self._reported.add(kind)
                number = sum(_kind(other) == kind for other in failed)
                self._say(f"{number} of {len(episodes)} episodes failed: {described(result)}")
        return None

    def _why_stop(
        self, environment: str, own: Sequence[EpisodeResult], *, is_first_step: bool
    ) -> str | None:
        """Return why nothing can be learned in an environment any more, or None."""
        kinds = {_kind(result) for result in own}
        if len(kinds) > 1 or not own[0].status.is_error:
            self._in_a_row.pop(environment, None)
            return None
        (kind,) = kinds
        before, number = self._in_a_row.get(environment, (kind, 0))
        number = number + 1 if before == kind else 1
        self._in_a_row[environment] = kind, number
        if is_first_step:
            where = f"{environment} in the first step" if environment else "the first step"
            return (
                f"every episode of {where} failed in the same way, so there is nothing to learn "
                "from."
            )
        if number < MAX_FAILED_STEPS:
            return None
        where = f" of {environment}" if environment else ""
        return (
            f"every episode{where} failed in the same way in {number} steps in a row, so there is "
            "nothing more to learn from."
        )


def _kind(result: EpisodeResult) -> FailureKind:
    """Return the kind of a failure: the same line of the user's code is the same kind."""
    where = "\n".join((result.traceback or "").splitlines()[:-1])
    return result.status.value, where or (result.error or "")


def described(result: EpisodeResult) -> str:
    """Return how an episode failed, with the lines of the user's code."""
    text = f"{result.status.value.replace('_', ' ')}: {result.error}"
    lines = (result.traceback or "").removesuffix(str(result.error)).rstrip()  # said already
    return f"{text}\n{lines}" if lines else text


def cut_below_own_limit(episodes: Iterable[EpisodeResult]) -> str | None:
    """Return a note on the first episode with fewer turns than its environment allows, or None."""
    for result in episodes:
        if result.status is EpisodeStatus.TRUNCATED_BY_TURNS and result.error:
            return f"an episode was {result.error}"
    return None


class FirstSteps:
    """Reports in the first steps of a run a constant reward, and that no episode says whether it
    succeeded; each once."""

    def __init__(self, say: Callable[[str], None], *, is_agent: bool) -> None:
        self._say = say
        self._look = _LOOK_AT_AGENTS if is_agent else _LOOK_AT_REWARDS
        self._num_steps = 0
        self._rewards: list[float] = []

    def check(self, played: Sequence[EpisodeResult]) -> None:
        """Check the episodes of the next step of a new run."""
        if self._num_steps >= _NUM_FIRST_STEPS or not played:
            return
        self._num_steps += 1
        agents = [agent for result in played for agent in result.agents]
        turns = [turn for agent in agents for turn in agent.turns]
        if self._num_steps == 1 and not turns:
            self._say(
                "no episode of the first step called the model, so there is nothing to learn from. "
                "Pass llm.base_url, llm.api_key and llm.model to the agent's client."
            )
        elif self._num_steps == 1 and not any("success" in turn.info for turn in turns):
            self._say(
                "no episode reported success, so none is shown. To have it measured, return it in "
                'the info of step, or from an agent: {"success": True} or {"success": False}.'
            )
        self._rewards += [agent.reward.total for agent in agents if agent.reward is not None]
        is_constant = len(set(self._rewards)) == 1 and len(self._rewards) >= _MIN_EPISODES
        if self._num_steps == _NUM_FIRST_STEPS and is_constant:
            self._say(
                f"the reward was {self._rewards[0]:.4g} in each of the {len(self._rewards)} "
                f"episodes of the first {_NUM_FIRST_STEPS} steps: as long as all earn the same, "
                f"nothing is learned. {self._look}"
            )
