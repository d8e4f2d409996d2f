"""Curricula: tasks that are chosen by how well the last ones went."""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

from turnwise.errors import ConfigError

Task: TypeAlias = Mapping[str, Any]

_NUM_TASKS = 32


@runtime_checkable
class Curriculum(Protocol):
    """Chooses the tasks of a step, and observes their results.

    A task is the `task` of an environment when it is reset. Evaluations play all tasks of a
    sequence `tasks`, from easy to hard, if it has one.
    """

    def choose(self, num_tasks: int, rng: random.Random) -> Sequence[Task]:
        """Return one task for each group of the next step."""

    def observe(self, success: float, reward: float) -> None:
        """Observe the success rate and the mean reward of the step's episodes."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs, as JSON values."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


def evaluation_tasks(curriculum: Curriculum) -> list[Task] | None:
    """Return the tasks that evaluations of its run play: all its `tasks`, the hardest first.

    A curriculum without `tasks` is asked for those of a first step. None if that is not possible
    without changing it.
    """
    tasks = getattr(curriculum, "tasks", None)
    if tasks is not None:
        return list(reversed(tasks))
    with contextlib.suppress(Exception):  # of a user's code, or it cannot be copied
        return list(copy.deepcopy(curriculum).choose(_NUM_TASKS, random.Random(0)))
    return None


def check_curriculum(curriculum: Any) -> None:
    """Raise unless this is a curriculum or None."""
    is_one = isinstance(curriculum, Curriculum) and not isinstance(curriculum, type)
    if curriculum is not None and not is_one:
        raise ConfigError(
            f"curriculum got {curriculum!r:.80}, expected an object with the methods choose, "
            "observe, state_dict and load_state_dict, such as turnwise.Levels([...])."
        )


class Levels:
    """A list of tasks from easy to hard: a level up when most succeed, down when few do.

    >>> levels = Levels([{"size": 2}, {"size": 4}], up=0.8)
    >>> levels.observe(success=0.9, reward=1.0)
    >>> levels.choose(1, random.Random(0))
    [{'size': 4}]
    """

    def __init__(self, tasks: Sequence[Task], *, up: float = 0.8, down: float = 0.2) -> None:
        if not tasks:
            raise ConfigError("a curriculum needs at least one level, got none")
        if not 0 <= down < up <= 1:
            raise ConfigError(f"got up={up} and down={down}, expected 0 <= down < up <= 1")
        self.tasks = list(tasks)
        self.level = 0
        self._up = up
        self._down = down

    def choose(self, num_tasks: int, rng: random.Random) -> Sequence[Task]:
        return [self.tasks[self.level]] * num_tasks

    def observe(self, success: float, reward: float) -> None:
        if success >= self._up:
            self.level = min(self.level + 1, len(self.tasks) - 1)
        elif success <= self._down:
            self.level = max(self.level - 1, 0)

    def state_dict(self) -> dict[str, Any]:
        return {"level": self.level}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.level = min(int(state["level"]), len(self.tasks) - 1)
