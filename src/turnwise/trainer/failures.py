"""Why a run must end: failed episodes, steps that change nothing, episodes of another model.

What is only suspicious is reported as soon as it is played.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

from turnwise.episode import Collection, EpisodeResult
from turnwise.errors import TrainingStopped
from turnwise.inference import SamplingParams
from turnwise.types import EpisodeStatus

FailureKind: TypeAlias = tuple[str, str]
"""How an episode failed: its status, and where in the user's code."""

MAX_FAILED_STEPS = 5
"""A run ends after this many consecutive steps from which nothing can be learned."""
_NUM_FIRST_STEPS = 2
_MIN_EPISODES = 8
"""Fewer episodes may have the same reward by chance."""
# In float32 on the same weights the gap stays under 1e-4; that of another model is far above this.
_MAX_GAP_IN_FLOAT32 = 0.01
# The mean gap of bfloat16 and of quantised engines is a few hundredths; of another model some nats.
_MAX_MEAN_GAP = 0.5


class FailureReport:
    """Reports the first failed episode of each kind, and when all episodes fail.

    A run must end when every episode of its first step failed in the same way, or every episode of
    five consecutive steps; in a mix, when this holds for one environment.
    """

    def __init__(
        self, say: Callable[[str], None], *, is_agent: bool = False, has_warm_start: bool = False
    ) -> None:
        self._say = say
        self._is_agent, self._has_warm_start = is_agent, has_warm_start
        self._reported: set[FailureKind | str] = set()
        self._num_first_steps: int | None = None
        """Steps of a new run so far; None: the run was resumed."""
        self._first_rewards: list[float] = []
        self._in_a_row: dict[str, tuple[FailureKind, int]] = {}
        """By environment: how all its episodes failed, and in how many consecutive steps."""

    def check(self, played: Collection, *, is_first_step: bool) -> str | None:
        """Report new kinds of failures of a step; return why the run must end, or None."""
        episodes = [*played, *played.dropped]
        if is_first_step and self._num_first_steps is None:
            self._num_first_steps = 0
        self._check_first_steps([result for result in episodes if not result.status.is_error])
        for environment in sorted({result.part for result in episodes}):
            results = [result for result in episodes if result.part == environment]
            why = self._why_stop(environment, results, is_first_step=is_first_step)
            if why is not None:
                return f"{why}\n{described(results[0])}"
        note = cut_below_own_limit(episodes)
        if note is not None and note not in self._reported:
            self._reported.add(note)
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
        self, environment: str, results: Sequence[EpisodeResult], *, is_first_step: bool
    ) -> str | None:
        """Return why nothing can be learned in an environment any more, or None."""
        kinds = {_kind(result) for result in results}
        if len(kinds) > 1 or not results[0].status.is_error:
            self._in_a_row.pop(environment, None)
            return None
        (kind,) = kinds
        before, number = self._in_a_row.get(environment, (kind, 0))
        number = number + 1 if before == kind else 1
        self._in_a_row[environment] = kind, number
        if is_first_step:
            where = f"{environment} in the first step" if environment else "the first step"
            how_long, more = "", ""
        elif number >= MAX_FAILED_STEPS:
            where, how_long, more = environment, f" in {number} steps in a row", "more "
        else:
            return None
        return (
            f"every episode{f' of {where}' if where else ''} failed in the same way{how_long}, so "
            f"there is nothing {more}to learn from."
        )

    def _check_first_steps(self, played: Sequence[EpisodeResult]) -> None:
        """Report in the first steps of a run a constant reward, and that success is unknown."""
        if self._num_first_steps is None or self._num_first_steps >= _NUM_FIRST_STEPS or not played:
            return
        self._num_first_steps += 1
        agents = [agent for result in played for agent in result.agents]
        turns = [turn for agent in agents for turn in agent.turns]
        if self._num_first_steps == 1 and not turns:
            self._say(
                "no episode of the first step called the model, so there is nothing to learn from. "
                "Pass llm.base_url, llm.api_key and llm.model to the agent's client."
            )
        elif self._num_first_steps == 1 and not any("success" in turn.info for turn in turns):
            self._say(
                "no episode reported success, so none is shown. To have it measured, return it in "
                'the info of step, or from an agent: {"success": True} or {"success": False}.'
            )
        rewards = self._first_rewards
        rewards += [agent.reward.total for agent in agents if agent.reward is not None]
        is_constant = len(set(rewards)) == 1 and len(rewards) >= _MIN_EPISODES
        is_solved = all(agent.turns and agent.turns[-1].info.get("success") for agent in agents)
        if self._num_first_steps == _NUM_FIRST_STEPS and is_constant and not is_solved:
            if self._is_agent:
                look = (
                    "Read the conversations (turnwise view). If the model cannot do the task, "
                    "begin with an easier one"
                )
                imitate = (
                    ", or let it imitate an expert first: Trainer(agent=..., expert=...) with "
                    "training.warm_start: expert"
                )
            else:
                look = (
                    "Look at what the reward depends on (turnwise play --player random), or begin "
                    "with an easier task"
                )
                imitate = " or training.warm_start"
            look += "." if self._has_warm_start else f"{imitate}."
            self._say(
                f"the reward was {rewards[0]:.4g} in each of the {len(rewards)} episodes of the "
                f"first {_NUM_FIRST_STEPS} steps: as long as all earn the same, nothing is "
                f"learned. {look}"
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


def why_nothing_changes(num_broken_steps: int, metrics: Mapping[str, float]) -> str | None:
    """Return why a run should end after so many steps in a row that did not change the model."""
    if num_broken_steps < MAX_FAILED_STEPS:
        return None
    why = "no episode could be learned from. Look at the errors in log.txt."
    if metrics.get("num_skipped_steps"):
        why = (
            "the loss or its gradient was not a finite number. Lower training.learning_rate, "
            "or look for extreme rewards."
        )
    return f"{MAX_FAILED_STEPS} steps in a row changed nothing: {why}"


def check_gap(
    setting: float | Literal["auto"] | None,
    metrics: Mapping[str, float],
    sampling: SamplingParams,
    *,
    is_exact: bool,
) -> None:
    """Raise if the sampler's log-probs and the learner's differ by more nats than allowed.

    A larger gap means that the episodes come from another model than the learner's. `setting` is
    `training.max_log_prob_gap`; `is_exact` says whether both compute in float32 on the same
    weights, else the mean is judged. A gap is expected, and not checked, where older weights have
    played, or where the sampler filtered tokens, which makes the others likelier.
    """
    is_filtered = sampling.top_p < 1.0 or sampling.top_k > 0 or sampling.min_p > 0.0
    if setting is None or is_filtered or "weights_behind" in metrics:
        return
    name = "gap_max" if is_exact else "gap_mean"
    limit = setting
    if limit == "auto":
        limit = _MAX_GAP_IN_FLOAT32 if is_exact else _MAX_MEAN_GAP
    gap = metrics.get(name, 0.0)
    if gap > limit:
        what = "differ by up to" if is_exact else "differ on average by"
        raise TrainingStopped(
            f"the learner's log-probs {what} {gap:.3g} nats from the sampler's ({name}), expected "
            f"at most {limit:g} (training.max_log_prob_gap): the episodes come from another model "
            "than the one that is trained. Likely causes: weights that did not reach the engine, "
            "an attention that engine and learner compute differently (sliding window, softcap, "
            "sinks), a quantised engine, a server with another model or temperature. To find out, "
            "train with inference.backend=transformers: if the gap is gone, it is the engine. A "
            "larger training.max_log_prob_gap allows more, null disables this check."
        )
