"""`BaseEnvironment`: the one class that a user writes."""

from __future__ import annotations

import copy
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self

from turnwise.config import EnvironmentConfig

NO_TASK = (
    "self.task is None, since there is no dataset. Pass one, dataset=[{...}, ...] or the setting "
    "dataset.path: self.task is then the row that the episode plays."
)
"""What to do about an environment that reads `self.task` where nobody set it."""


class BaseEnvironment(ABC):
    """A world that speaks text. Write `reset`, `step` and `get_state_description`.

    >>> class Echo(BaseEnvironment):
    ...     def reset(self) -> str:
    ...         return "Say hello."
    ...     def step(self, action: str) -> tuple[str, float, bool, dict]:
    ...         return "Thanks.", float("hello" in action.lower()), True, {}
    ...     def get_state_description(self) -> str:
    ...         return "Waiting for a greeting."

    One object plays one episode at a time; whoever runs many makes as many, with `spawn`.
    Take all randomness from `self.rng`: it is seeded before each `reset`, so the same seed
    gives the same episode. `reset` and `step` may be `async def`. An `info` may say
    `success` (the task was solved), `invalid_action` (the text was not understood) and
    `truncated` (the episode was cut, not finished).
    """

    # Class attributes, so that a subclass that forgets super().__init__ still works.
    max_steps: int = 10
    """After so many actions the episode is cut. Set it on the class or in the config."""
    quick: bool = False
    """Never waits for anything: may run on the event loop, without a thread or a deadline."""
    sees_thoughts: bool = False
    """Whether `step` gets the whole turn, thoughts included; else only the answer."""
    step_count: int = 0
    """How many actions this episode has seen; kept by whoever drives the episode too."""
    state: Any = None
    """Free for the environment's own use."""
    task: Mapping[str, Any] | None = None
    """The row of the dataset to play, if there is one; an episode sets it before `reset`."""
    _done: bool = False
    _rng: random.Random | None = None

    def __init__(self, config: EnvironmentConfig | Mapping[str, Any] | None = None) -> None:
        self.config = EnvironmentConfig.of(config)
        if self.config.max_steps is not None:
            self.max_steps = self.config.max_steps

    @abstractmethod
    def reset(self) -> str:
        """Begin a new episode; the text returned is what the agent reads first.

        It may take `seed: int | None = None` as an argument instead of using `self.rng`.
        """

    @abstractmethod
    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Carry out an action: (observation, reward, done, info)."""

    @abstractmethod
    def get_state_description(self) -> str:
        """The present state as text. Two equal texts mean the same state (GiGPO relies on it)."""

    def get_prompt_prefix(self) -> str:
        """The system prompt: the rules, and how to write an action. Empty: none is sent."""
        return ""

    def get_history(self) -> Sequence[Mapping[str, Any]]:
        """What was said before the first observation, for an episode that begins in the middle.

        Messages of the roles user and assistant, the first a user's; most have none.
        """
        return ()

    def sample_action(self, rng: random.Random) -> str | None:
        """A valid random action, or None if this environment does not offer any."""
        return None

    def expert_action(self) -> str | None:
        """What a good player would do now, or None if this environment does not know."""
        return None

    @property
    def done(self) -> bool:
        """Whether the episode is over, as far as the environment itself has said."""
        return self._done

    @done.setter
    def done(self, value: bool) -> None:
        self._done = value

    def is_done(self) -> bool:
        """Over by itself, or out of steps."""
        return self._done or self.step_count >= self.max_steps

    @property
    def rng(self) -> random.Random:
        """This episode's own random numbers; `seed` starts them anew."""
        if self._rng is None:
            self._rng = random.Random()
        return self._rng

    def seed(self, seed: int) -> None:
        """Fix the randomness of the episodes that follow."""
        self._rng = random.Random(seed)

    def spawn(self) -> Self:
        """A fresh environment of the same kind, for another episode beside this one."""
        return copy.deepcopy(self)

    def close(self) -> None:
        """Free what the environment holds. May be called twice."""
