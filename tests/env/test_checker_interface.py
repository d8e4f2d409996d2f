"""`check_env` on misshapen environments and wrong answers: one finding each."""

from __future__ import annotations

import re

import numpy as np
import pytest

from checker_doors import Doors, only_finding
from turnwise.env.base import BaseEnvironment
from turnwise.env.checker import check_env


class NotDerived:
    def reset(self):
        return "hello"


def make_the_wrong_thing():
    return NotDerived()


class NoStep(BaseEnvironment):
    def reset(self):
        return "hello"

    def get_state_description(self):
        return "state"


class RaisesWhenMade(Doors):
    def __init__(self, config=None):
        raise FileNotFoundError("words.txt")


class ResetNeedsArguments(Doors):
    def reset(self, level):
        return super().reset()


class HiddenSeed(Doors):
    def __init__(self, config=None):
        super().__init__(config)
        self.seed = 7


class AsyncState(Doors):
    async def get_state_description(self):
        return "state"


class NoLimit(Doors):
    max_steps = None


MISSHAPEN = [
    (NotDerived, "base-class", "NotDerived", "class NotDerived(BaseEnvironment):"),
    (make_the_wrong_thing, "base-class", "NotDerived", "derives from BaseEnvironment"),
    (NoStep, "signature", "abstract method", "def step(self, action: str)"),
    (
        RaisesWhenMade,
        "exceptions",
        r"words.txt \(test_checker_interface.py, line \d+\)",
        "Fix that line",
    ),
    (ResetNeedsArguments, "signature", r"reset\(level\)", "def reset(self) -> str:"),
    (HiddenSeed, "signature", "seed is 7", "def seed(self, seed: int)"),
    (AsyncState, "signature", "is async", "def get_state_description(self) -> str:"),
    (NoLimit, "max-steps", "max_steps is None", "max_steps = 20"),
]


@pytest.mark.parametrize(("env", "check", "message", "fix"), MISSHAPEN)
def test_a_misshapen_environment(env, check, message, fix):
    finding = only_finding(check_env(env), check)
    assert re.search(message, finding.message)
    assert fix in finding.fix


def test_a_file_that_cannot_be_imported(tmp_path):
    for text, message in {
        "class Env(:": r"SyntaxError.*\(typo.py, line 1\)",
        "import math\nmath.nothing": r"AttributeError.*\(typo.py, line 2\)",
    }.items():
        (tmp_path / "typo.py").write_text(text)
        finding = only_finding(check_env(f"{tmp_path}/typo.py:Env"), "import")
        assert re.search(message, finding.message)


def test_a_gymnasium_environment_is_sent_to_its_adapter():
    class CartPole:
        __module__ = "gymnasium.envs.classic_control"

    assert "gym:" in only_finding(check_env(CartPole()), "base-class").fix


def doors_that_answer(**changes):
    """Doors whose steps return something else for one of the four values."""

    class Changed(Doors):
        def step(self, action):
            names = ("observation", "reward", "done", "info")
            answer = dict(zip(names, super().step(action), strict=True))
            return tuple({**answer, **changes}.values())

    return Changed


class GymnasiumReset(Doors):
    def reset(self):
        return super().reset(), {}


class EmptyReset(Doors):
    def reset(self):
        super().reset()
        return " "


class StateDict(Doors):
    def get_state_description(self):
        return {"opened": self.opened}


class PromptNone(Doors):
    def get_prompt_prefix(self):
        return None


ANSWERS = [
    (GymnasiumReset, "reset", "error", "type tuple", "Return the observation alone"),
    (EmptyReset, "reset", "warning", "returned ' '", "get_state_description"),
    (doors_that_answer(truncated=False), "step", "error", "5 values, expected 4", "Return (obs"),
    (doors_that_answer(observation="", done=False), "step", "warning", "returned.*''", "Say what"),
    (doors_that_answer(reward="much"), "step", "error", "reward of type str", "float("),
    (doors_that_answer(reward=-np.inf), "step", "error", "-inf, expected a finite", "division"),
    (StateDict, "state-description", "error", "opened.*expected a str", "return str(...)"),
    (PromptNone, "prompt-prefix", "error", "None, expected a str", "return str(...)"),
]


@pytest.mark.parametrize(("env", "check", "level", "message", "fix"), ANSWERS)
def test_wrong_answers(env, check, level, message, fix):
    # Never-ending episodes are worth a note as well; that is not what is looked at here.
    report = check_env(env)
    report.findings = [finding for finding in report if finding.check != "termination"]
    finding = only_finding(report, check, level)
    assert re.search(message, finding.message)
    assert fix in finding.fix
