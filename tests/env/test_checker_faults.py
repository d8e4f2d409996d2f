"""`check_env` on environments with one fault each: one finding, and its fix."""

import random
import re
import sys
import threading
import time

import numpy as np
import pytest

from checker_doors import Doors, only_finding
from turnwise.env.base import BaseEnvironment
from turnwise.env.checker import check_env, checks
from turnwise.episode import run_episode
from turnwise.errors import EnvironmentFault, TurnwiseError
from turnwise.inference import ScriptedEngine
from turnwise.models import load_tokenizer
from turnwise.tools import tool


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


class AsyncState(Doors):
    async def get_state_description(self):
        return "state"


class NoLimit(Doors):
    max_steps = None


INTERFACE = [
    (
        RaisesWhenMade,
        "exceptions",
        "error",
        r"words.txt \(test_checker_faults.py, line \d+\)",
        "Fix that line",
    ),
    (ResetNeedsArguments, "signature", "error", r"reset\(level\)", "def reset(self) -> str:"),
    (AsyncState, "signature", "error", "is async", "def get_state_description(self) -> str:"),
    (NoLimit, "max-steps", "error", "max_steps is None", "max_steps = 20"),
]


def test_what_is_no_environment_is_refused():
    for source, problem in (
        (NotDerived, "derived from turnwise.BaseEnvironment"),
        (make_the_wrong_thing, "returned NotDerived"),
        (NoStep, "has no method step"),
    ):
        with pytest.raises(TurnwiseError, match=problem):
            check_env(source)


def test_a_file_that_cannot_be_imported(tmp_path):
    for text, message in {
        "class Env(:": r"SyntaxError.*\(typo.py, line 1\)",
        "import math\nmath.nothing": r"AttributeError.*\(typo.py, line 2\)",
    }.items():
        (tmp_path / "typo.py").write_text(text)
        finding = only_finding(check_env(f"{tmp_path}/typo.py:Env"), "import")
        assert re.search(message, finding.message)


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


ANSWERS = [
    (GymnasiumReset, "reset", "error", "type tuple", "Return the observation alone"),
    (EmptyReset, "reset", "warning", "observation ' '", "get_state_description"),
    (doors_that_answer(truncated=False), "step", "error", "5 values, expected 4", "Return (obs"),
    (
        doors_that_answer(observation="", done=False),
        "step",
        "warning",
        "observation ''",
        "what happened",
    ),
    (doors_that_answer(reward=-np.inf), "step", "error", "-inf, expected a finite", "division"),
    (StateDict, "state-description", "error", "opened.*expected a str", "return str(...)"),
]


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
        return f"You rolled {random.random()}, not {self.rng.random()}."

    def sample_action(self, rng):
        return rng.choice(["A", "B", "C", '{"name": "roll", "arguments": {}}'])


class SeedZeroForgotten(Doors):
    def reset(self, seed=None):
        super().reset()
        return f"Door {random.Random(seed or None).random()}?"


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
    (RandomTool, "seeds", "error", "You rolled", "In step() write `self.rng`"),
    (SeedZeroForgotten, "seeds", "error", r"seed 0.*after reset\(\)", "`self.rng`"),
    (CountingState, "state-description", "error", "twice in a row", "counter"),
    (ChangingState, "state-description", "error", "changes the episode", "Only read"),
    (LeakyScore, "leaked-state", "error", "Score 1.*Score", "`self.score = 0`"),
    (ClassHistory, "seeds", "error", "seed 0 gave two", "class attributes"),
    (ClearedClassHistory, "shared-state", "error", "same time", "class attributes"),
]


class Uncopyable(Doors):
    def __init__(self, config=None):
        super().__init__(config)
        self.lock = threading.Lock()


def test_a_copy_that_cannot_be_made_matters_to_an_instance_only():
    assert check_env(Uncopyable).findings == []
    as_instance = only_finding(check_env(Uncopyable()), "spawn", "error")
    assert "Pass the class" in as_instance.fix
    assert "def spawn(self)" in as_instance.fix


class NumbersOnly(Doors):
    """Valid actions work; any other text makes it raise."""

    def step(self, action):
        return super().step("ABC"[int(action)])

    def sample_action(self, rng):
        return str(rng.randrange(3))

    def expert_action(self):
        return str("ABC".index(self.right))


class Endless(Doors):
    max_steps = 1_000_000
    sample_action = BaseEnvironment.sample_action
    expert_action = BaseEnvironment.expert_action

    def step(self, action):
        return "On and on.", 0.0, False, {}


class InvalidSamples(Doors):
    def sample_action(self, rng):
        return "open " + rng.choice("ABC")


class NumberSamples(Doors):
    def sample_action(self, rng):
        return rng.randrange(3)


class InvalidExpert(Doors):
    def expert_action(self):
        return f"door {self.right}"


class CloseOnce(Doors):
    handle = "open"

    def close(self):
        if self.handle is None:
            raise ValueError("already closed")
        self.handle = None


class Quits(Doors):
    def step(self, action):
        sys.exit(3)


class Slow(Doors):
    max_steps = 1

    def step(self, action):
        time.sleep(0.005)
        return super().step(action)


CONDUCT = [
    (NumbersOnly, "odd-actions", "error", r"step\('yes'\) raised ValueError", "'invalid_action'"),
    (Quits, "exceptions", "error", "SystemExit", "Fix that line"),
    (InvalidSamples, "sample-action", "warning", "offered 'open", "as step() reads it"),
    (NumberSamples, "sample-action", "error", "expected a str or None", "return str(action)"),
    (InvalidExpert, "expert-action", "warning", "offered 'door", "as step() reads it"),
    (CloseOnce, "close", "error", "already closed.* second time", "also twice"),
]


FAULTS = INTERFACE + ANSWERS + REPEATS + CONDUCT


@pytest.mark.parametrize(("env", "check", "level", "message", "fix"), FAULTS)
def test_a_fault_is_one_finding(env, check, level, message, fix):
    report = check_env(env)
    if check in ("reset", "step", "state-description"):
        # Never-ending episodes are worth a note as well; that is not what is looked at here.
        report.findings = [finding for finding in report if finding.check != "termination"]
    finding = only_finding(report, check, level)
    assert re.search(message, finding.message)
    assert fix in finding.fix


def test_the_report_reads_well_and_can_be_raised():
    report = check_env(LeakyScore)
    text = str(report)
    assert text.startswith("LeakyScore: 1 error\nerror [leaked-state] ")
    assert "\n  fix: Write `self.score = 0` in reset()" in text
    assert "not run until this is fixed: shared-state, odd-actions" in text
    assert "seeds" in report.passed
    with pytest.raises(EnvironmentFault, match="leaked-state"):
        check_env(LeakyScore, raise_on_error=True)


class PlainTools(Doors):
    """Its tools return values and never end the episode."""

    max_steps = 4

    @tool
    def look(self) -> str:
        """Look at the doors."""
        return "Three doors."

    def sample_action(self, rng):
        return '{"name": "look", "arguments": {}}'

    expert_action = BaseEnvironment.expert_action


def test_a_turn_of_tool_calls_is_no_step():
    finding = only_finding(check_env(PlainTools, num_episodes=2), "termination", "note")
    assert "cut after 64 turns, with max_steps=4" in finding.message
    assert "return done=True" in finding.fix
    engine = ScriptedEngine(load_tokenizer("tiny"), PlainTools().sample_action(None))
    assert run_episode(engine, PlainTools).num_turns == 64


class LooksFirst(PlainTools):
    """More turns than steps: it is looked at four times, then a door is opened."""

    max_steps = 2

    def reset(self):
        self.num_looks = 0
        return super().reset()

    @tool
    def look(self) -> str:
        """Look at the doors."""
        self.num_looks += 1
        return "Three doors."

    def expert_action(self):
        return self.right if self.num_looks == 4 else self.sample_action(None)


def test_tool_calls_before_the_last_step_do_not_cut_the_episode():
    report = check_env(LooksFirst, num_episodes=2)
    assert list(report) == []


def test_an_episode_without_an_end(monkeypatch):
    monkeypatch.setattr(checks, "MANY_TURNS", 50)
    finding = only_finding(check_env(Endless, num_episodes=1), "termination")
    assert "no episode ended within 50 turns, and max_steps is 1000000" in finding.message
    assert "max_steps = 50" in finding.fix


def test_slow_steps_are_measured():
    finding = only_finding(check_env(Slow, num_episodes=1, slow_after=0.002), "slow", "warning")
    milliseconds = re.search(r"takes (\d+) ms", finding.message)
    assert milliseconds is not None
    assert int(milliseconds[1]) >= 5
    assert "async def step" in finding.fix


released = threading.Event()


@pytest.fixture
def released_at_the_end():
    released.clear()
    yield
    released.set()


def hang(*_args):
    released.wait(60)


async def hang_async(*_args):
    hang()  # an async method that blocks all the same


@pytest.mark.usefixtures("released_at_the_end")
@pytest.mark.parametrize(
    ("method", "body"), [("__init__", hang), ("reset", hang), ("step", hang_async)]
)
def test_what_hangs_is_a_finding_and_not_a_hang(method, body):
    env = type("Hanging", (Doors,), {method: body})
    finding = only_finding(check_env(env, timeout=1.0), "timeout")
    assert "did not come back within 1 s" in finding.message
    assert method == "__init__" or f"{method}(" in finding.message
