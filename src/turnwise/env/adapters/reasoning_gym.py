"""reasoning-gym's tasks as environments: one question, one answer, its own score.

>>> env = ReasoningGymEnvironment("leg_counting", size=100)  # or "reasoning-gym:leg_counting"
>>> env.seed(3)
>>> print(env.reset().splitlines()[0])
Your task is to count how many legs there are in total when given a list of animals.
"""

import copy
import inspect
import random
import re
from collections.abc import Mapping
from typing import Any, Self

from turnwise.config import EnvironmentConfig
from turnwise.env.adapters import Randomness
from turnwise.env.base import BaseEnvironment
from turnwise.errors import ConfigError, EnvironmentFault, did_you_mean, import_extra


class ReasoningGymEnvironment(BaseEnvironment):
    """One task of reasoning-gym, a single turn.

    Options go to the task: its difficulty, `size` (how many different questions) and `seed`
    (which ones; 0 if not given). A config may hold them in its `params`. The episode's seed
    chooses among the questions: seeds from 0 to size - 1 ask each once.

    The reward is the task's own score, 1 for a right answer; some tasks give part of it for a
    near miss. The answer is what stands between <answer> and </answer>, or the whole text.
    """

    max_steps = 1

    def __init__(
        self, task: str, config: EnvironmentConfig | Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        super().__init__(config)
        self.task_name = task
        self.options = {"seed": 0, **self.config.params, **options}
        self._next_index: int | None = None
        self._entry: dict[str, Any] | None = None
        _dataset(self.task_name, self.options)

    def seed(self, seed: int) -> None:
        super().seed(seed)
        self._next_index = seed

    def reset(self) -> str:
        self._done = False
        self.step_count = 0
        if self._next_index is None:
            self._next_index = self.rng.getrandbits(32)
        self._entry = self._question(self._next_index)
        self._next_index += 1
        return str(self._entry["question"])

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        if self._entry is None:
            raise EnvironmentFault(f"{self.task_name} has not begun. Call reset() before step().")
        self._done = True
        expected = self._entry["answer"]
        info: dict[str, Any] = {"answer": expected}
        tagged = re.findall(r"<answer>(.*?)</answer>", action, re.DOTALL | re.IGNORECASE)
        try:
            score = self._score((tagged or [action])[-1].strip())
        except Exception as error:
            # A few tasks raise on a text that is no answer. That is the agent's error, unless the
            # right answer raises too.
            if expected is not None:
                self._score(expected)
            score = 0.0
            info |= {"invalid_action": True, "score_error": f"{type(error).__name__}: {error}"}
        info["success"] = score >= 1
        verdict = "Right." if score >= 1 else f"Score {score:.3g}; expected: {expected}"
        return verdict, score, True, info

    def get_state_description(self) -> str:
        question = "" if self._entry is None else str(self._entry["question"])
        return f"{question}\n(answered)" if self._done else question

    def get_prompt_prefix(self) -> str:
        return (
            "Solve the task. You may think first; "
            "then write the final answer, and nothing else, between <answer> and </answer>."
        )

    def sample_action(self, rng: random.Random) -> str | None:
        """Returns the answer to another question of the task: well formed, mostly wrong."""
        return _tagged(self._question(rng.getrandbits(32))["answer"])

    def expert_action(self) -> str | None:
        return None if self._entry is None else _tagged(self._entry["answer"])

    def spawn(self) -> Self:
        return type(self)(self.task_name, copy.deepcopy(self.config), **self.options)

    def _question(self, index: int) -> dict[str, Any]:
        dataset = _dataset(self.task_name, self.options)
        position = index % len(dataset)
        # Most tasks have a generator of their own; some use the global one.
        with Randomness(position).installed():
            entry: dict[str, Any] = dataset[position]
        return entry

    def _score(self, answer: str) -> float:
        with Randomness(0).installed():
            return float(_dataset(self.task_name, self.options).score_answer(answer, self._entry))


# Some datasets take half a second to create; none changes when it is used. All environments of the
# same task and options share one, and copying them does not copy it.
_DATASETS: dict[tuple[str, str], Any] = {}


def _dataset(task: str, options: Mapping[str, Any]) -> Any:
    key = task, repr(sorted(options.items()))
    if key in _DATASETS:
        return _DATASETS[key]
    tasks = import_extra("reasoning_gym", "reasoning-gym").factory.DATASETS
    if task not in tasks:
        raise ConfigError(f"reasoning-gym has no task {task!r}. {did_you_mean(task, tasks)}")
    dataset_class, config_class = tasks[task]
    known = inspect.signature(config_class).parameters
    for name in options.keys() - known:
        raise ConfigError(f"{task} has no option {name!r}. {did_you_mean(name, known)}")
    try:
        with Randomness(0).installed():
            dataset = dataset_class(config=config_class(**options))
    except (AssertionError, TypeError, ValueError) as error:
        message = f"{task} does not take the options {dict(options)}: {error}"
        raise ConfigError(message) from None
    return _DATASETS.setdefault(key, dataset)


def _tagged(answer: str | None) -> str | None:
    """Returns an answer as the prompt asks for it; some tasks have no single answer."""
    return None if answer is None else f"<answer>{answer}</answer>"
