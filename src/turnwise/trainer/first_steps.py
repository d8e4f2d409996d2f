"""What the first steps of a run show of its reward, reported before anyone waits for the doctor."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from turnwise.episode import EpisodeResult

_NUM_STEPS = 2
_NUM_EPISODES = 8
"""Fewer that earn the same may do so by chance."""


class FirstSteps:
    """Reports, each once: a reward that is the same in every episode, and success that is nowhere
    reported."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._num_steps = 0
        self._rewards: list[float] = []

    def look(self, played: Sequence[EpisodeResult]) -> None:
        """Look at the episodes of the next step of a run that began here."""
        if self._num_steps >= _NUM_STEPS or not played:
            return
        self._num_steps += 1
        if self._num_steps == 1 and not any(map(_reports_success, played)):
            self._say(
                "no episode reported success, so none is shown. To have it measured, return it in "
                'the info of step: {"success": True} or {"success": False}.'
            )
        self._rewards += [
            agent.reward.total
            for result in played
            for agent in result.agents
            if agent.reward is not None
        ]
        is_constant = len(set(self._rewards)) == 1 and len(self._rewards) >= _NUM_EPISODES
        if self._num_steps == _NUM_STEPS and is_constant:
            self._say(
                f"the reward was {self._rewards[0]:.4g} in each of the {len(self._rewards)} "
                f"episodes of the first {_NUM_STEPS} steps: as long as all earn the same, nothing "
                "is learned. Look at what the reward depends on (turnwise play --player random), "
                "or begin with an easier task or training.warm_start."
            )


def _reports_success(result: EpisodeResult) -> bool:
    return any("success" in turn.info for agent in result.agents for turn in agent.turns)
