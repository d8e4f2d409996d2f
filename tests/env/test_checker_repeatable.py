"""`check_env` on episodes that depend on more than seed and actions: one finding each."""

from __future__ import annotations

import random
import re
import threading

import numpy as np
import pytest

from checker_doors import Doors, only_finding
from turnwise.env.checker import check_env
from turnwise.tools import tool


class ModuleRandom(Doors):
    def reset(self):
        super().reset()
        self.right = random.choice("ABC")
        return f"Which door? Perhaps {random.random()}"


class NumpyRandom(Doors):
    def step(self, action):
        observation, reward, done, info = super().step(action)
        return observation, reward + 1e-3 * float(np.random.rand()), done, info


class RandomTool(Doors):
    @tool
    def roll(self) -> str:
        """Roll a die."""
        return f"You rolled {random.randint(1, 6)}, not {self.rng.random()}."

    def sample_action(self, rng):
        return rng.choice(["A", "B", "C", '{"name": "roll", "arguments": {}}'])


class SeedZeroForgotten(Doors):
    def reset(self, seed=None):
        super().reset()
        return f"Door {random.Random(seed or None).random()}?"


class SeedsTheModule(Doors):
    def reset(self, seed=None):
        super().reset()
        random.seed(seed)
        self.right = random.choice("ABC")
        return "Which door?"


class CountingState(Doors):
    num_looks = 0

    def get_state_description(self):
        self.num_looks += 1
        return f"look {self.num_looks}"


class ChangingState(Doors):
    def get_state_description(self):
        self.right = "A"
        return "doors"


class LeakyScore(Doors):
    def __init__(self, config=None):
        super().__init__(config)
        self.score = 0

    def step(self, action):
        observation, reward, done, info = super().step(action)
        self.score += 1
        return f"{observation} Score {self.score}.", reward, done, info


class EmptiedDeck(Doors):
    def __init__(self, config=None):
        super().__init__(config)
        self.deck = list(range(6))

    def step(self, action):
        self.deck.pop()
        return super().step(action)


class ClassHistory(Doors):
    history: list = []  # noqa: RUF012

    def step(self, action):
        self.history.append(action)
        observation, reward, done, info = super().step(action)
        return f"{observation} {len(self.history)}", reward, done, info


class ClearedClassHistory(ClassHistory):
    def reset(self):
        self.history.clear()
        return super().reset()


REPEATS = [
    (ModuleRandom, "seeds", "error", "two different episodes", "instead of `random`"),
    (NumpyRandom, "seeds", "error", "the reward was", "instead of `numpy.random`"),
    (RandomTool, "seeds", "error", "You rolled", "In the tool roll write `self.rng`"),
    (SeedZeroForgotten, "seeds", "error", r"seed 0.*after reset\(\)", "`self.rng`"),
    (SeedsTheModule, "global-random", "warning", r"reset\(\) draws.*random", "`self.rng`"),
    (CountingState, "state-description", "error", "twice in a row", "counter"),
    (ChangingState, "state-description", "error", "changes the episode", "Only read"),
    (LeakyScore, "leaked-state", "error", "Score 1.*Score", "`self.score = 0`"),
    (EmptiedDeck, "leaked-state", "error", "IndexError", "`self.deck = [0, 1, 2, 3, 4, 5]`"),
    (ClassHistory, "seeds", "error", "seed 0 gave two", "class attributes"),
    (ClearedClassHistory, "shared-state", "error", "same time", "class attributes"),
]


@pytest.mark.parametrize(("env", "check", "level", "message", "fix"), REPEATS)
def test_episodes_that_cannot_be_repeated(env, check, level, message, fix):
    finding = only_finding(check_env(env), check, level)
    assert re.search(message, finding.message)
    assert fix in finding.fix


class Uncopyable(Doors):
    def __init__(self, config=None):
        super().__init__(config)
        self.lock = threading.Lock()


class SpawnsItself(Doors):
    def spawn(self):
        return self


class ShallowSpawn(Doors):
    def __init__(self, config=None):
        super().__init__(config)
        self.shelf = {}

    def reset(self):
        self.shelf["opened"] = 0
        return super().reset()

    def step(self, action):
        self.shelf["opened"] += 1
        observation, reward, done, info = super().step(action)
        return f"{observation} {self.shelf['opened']}", reward, done, info

    def spawn(self):
        twin = type(self)(self.config)
        twin.shelf = self.shelf
        return twin


def test_a_copy_that_cannot_be_made_matters_to_an_instance_only():
    as_class = only_finding(check_env(Uncopyable), "spawn", "warning")
    assert "TypeError" in as_class.message
    as_instance = only_finding(check_env(Uncopyable()), "spawn", "error")
    assert "Pass the class" in as_instance.fix
    assert "def spawn(self)" in as_instance.fix


@pytest.mark.parametrize("env", [SpawnsItself, ShallowSpawn])
def test_a_spawn_that_shares(env):
    assert "def spawn(self)" in only_finding(check_env(env), "spawn").fix
