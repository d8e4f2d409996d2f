"""`BaseEnvironment`: the base class of environments."""

import copy
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self

from turnwise.config import EnvironmentConfig
from turnwise.tools.base import Tool, marked_tools
from turnwise.types import Content

NO_TASK = (
    "self.task is None, since there is no dataset. Pass one, dataset=[{...}, ...] or the setting "
    "dataset.path: self.task is then the row that the episode plays."
)
"""The error message for an environment that reads `self.task` when it is not set."""


class BaseEnvironment(ABC):
    """An environment with text actions and observations. Define the three abstract methods.

    >>> class Echo(BaseEnvironment):
    ...     def reset(self) -> str:
    ...         return "Say hello."
    ...     def step(self, action: str) -> tuple[str, float, bool, dict]:
    ...         return "Thanks.", float("hello" in action.lower()), True, {}
    ...     def get_state_description(self) -> str:
    ...         return "Waiting for a greeting."

    One object plays one episode at a time; `spawn` creates another. Take all randomness from
    `self.rng`: it is seeded before each `reset`, so that the same seed gives the same episode.
    `reset` and `step` may be `async def`. An `info` may have `success` (the task was solved),
    `invalid_action` (the text was no valid action) and `truncated` (the episode was cut).
    """

    # Class attributes, so that a subclass that forgets super().__init__ still works.
    max_steps: int = 10
    """The episode is truncated after this many actions. Set it on the class or in the config."""
    quick: bool = False
    """Whether it never waits: it then runs on the event loop, without a thread or a timeout."""
    sees_thoughts: bool = False
    """Whether `step` gets the whole turn, thoughts included, or only the answer."""
    step_count: int = 0
    """The number of actions in this episode; the driver counts if `step` does not."""
    state: Any = None
    """Free for the environment's own use."""
    task: Mapping[str, Any] | None = None
    """The row of the dataset, if there is one; an episode sets it before `reset`."""
    _done: bool = False
    _rng: random.Random | None = None

    def __init__(self, config: EnvironmentConfig | Mapping[str, Any] | None = None) -> None:
        self.config = EnvironmentConfig.of(config)
        if self.config.max_steps is not None:
            self.max_steps = self.config.max_steps

    @abstractmethod
    def reset(self) -> Content:
        """Starts a new episode and returns the first observation: a text, or parts of one.

        It may take `seed: int | None = None` as an argument instead of using `self.rng`.
        """

    @abstractmethod
    def step(self, action: str) -> tuple[Content, float, bool, dict[str, Any]]:
        """Takes an action and returns (observation, reward, done, info)."""

    @abstractmethod
    def get_state_description(self) -> str:
        """Returns the state as text. Equal texts mean equal states (GiGPO relies on it)."""

    def get_prompt_prefix(self) -> str:
        """Returns the system prompt: the rules, and how to write an action. May be empty."""
        return ""

    def get_history(self) -> Sequence[Mapping[str, Any]]:
        """Returns earlier messages, for an episode that starts in the middle of a conversation.

        They have the roles user and assistant; the first is a user's.
        """
        return ()

    def get_tools(self) -> Sequence[Tool]:
        """Returns the tools of this environment: its methods with `@tool`, unless it has others."""
        return marked_tools(self)

    def sample_action(self, rng: random.Random) -> str | None:
        """Returns a valid random action; None if this environment offers none."""
        return None

    def expert_action(self) -> str | None:
        """Returns the action of a good player; None if this environment has no expert."""
        return None

    @property
    def done(self) -> bool:
        """Whether the environment has ended the episode."""
        return self._done

    @done.setter
    def done(self, value: bool) -> None:
        self._done = value

    def is_done(self) -> bool:
        """Whether the episode has ended, or has used up its steps."""
        return self._done or self.step_count >= self.max_steps

    @property
    def rng(self) -> random.Random:
        """The random generator of this episode; `seed` sets it."""
        if self._rng is None:
            self._rng = random.Random()
        return self._rng

    def seed(self, seed: int) -> None:
        """Seeds the random generator."""
        self._rng = random.Random(seed)

    def spawn(self) -> Self:
        """Returns a fresh environment of the same kind, for another episode."""
        return copy.deepcopy(self)

    def close(self) -> None:
        """Frees the environment's resources. May be called twice."""
