"""`check_env` on environments with one fault each: one finding, and its fix."""

from __future__ import annotations

import random
import re
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from checker_doors import Doors, only_finding
from turnwise.env import checker
from turnwise.env.base import BaseEnvironment
from turnwise.env.checker import check_env, checks, harness
from turnwise.errors import EnvironmentFault
from turnwise.tools import tool
from turnwise.types import StepResult


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


INTERFACE = [
    (NotDerived, "base-class", "error", "NotDerived", "class NotDerived(BaseEnvironment):"),
    (make_the_wrong_thing, "base-class", "error", "NotDerived", "derives from BaseEnvironment"),
    (NoStep, "signature", "error", "abstract method", "def step(self, action: str)"),
    (
        RaisesWhenMade,
        "exceptions",
        "error",
        r"words.txt \(test_checker_faults.py, line \d+\)",
        "Fix that line",
    ),
    (ResetNeedsArguments, "signature", "error", r"reset\(level\)", "def reset(self) -> str:"),
    (HiddenSeed, "signature", "error", "seed is 7", "def seed(self, seed: int)"),
    (AsyncState, "signature", "error", "is async", "def get_state_description(self) -> str:"),
    (NoLimit, "max-steps", "error", "max_steps is None", "max_steps = 20"),
]


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
    (doors_that_answer(reward=-np.inf), "step", "error", "-inf, expected a finite", "division"),
    (StateDict, "state-description", "error", "opened.*expected a str", "return str(...)"),
    (PromptNone, "prompt-prefix", "error", "None, expected a str", "return str(...)"),
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


class NumbersOnly(Doors):
    """Valid actions work; any other text makes it raise."""

    def step(self, action):
        return super().step("ABC"[int(action)])

    def sample_action(self, rng):
        return str(rng.randrange(3))

    def expert_action(self):
        return str("ABC".index(self.right))


class NumbersOnlyWithoutOffers(NumbersOnly):
    sample_action = BaseEnvironment.sample_action
    expert_action = BaseEnvironment.expert_action


class OneThread(Doors):
    def __init__(self, config=None):
        super().__init__(config)
        self.home = threading.get_ident()

    def step(self, action):
        if threading.get_ident() != self.home:
            raise RuntimeError("created in another thread")
        return super().step(action)


class Endless(Doors):
    max_steps = 1_000_000
    sample_action = BaseEnvironment.sample_action
    expert_action = BaseEnvironment.expert_action

    def step(self, action):
        return "On and on.", 0.0, False, {}


class InvalidSamples(Doors):
    def sample_action(self, rng):
        return "open " + rng.choice("ABC")


class CarelessSamples(Doors):
    counter = 0

    def sample_action(self, rng):
        self.counter += 1
        return "ABC"[self.counter % 3]


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
    (NumbersOnlyWithoutOffers, "exceptions", "error", "raised ValueError", "'invalid_action'"),
    (OneThread, "threads", "error", "another thread", "check_same_thread=False"),
    (Quits, "exceptions", "error", "SystemExit", "Fix that line"),
    (InvalidSamples, "sample-action", "warning", "offered 'open", "as step() reads it"),
    (CarelessSamples, "sample-action", "error", "same generator", "rng.choice(actions)"),
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
    assert "not run until this is fixed: spawn" in text
    assert "seeds" in report.passed
    with pytest.raises(EnvironmentFault, match="leaked-state"):
        check_env(LeakyScore, raise_on_error=True)


class ReActExpert(Doors):
    """Its expert writes calls as lines of text; a text that is no door is invalid."""

    @tool
    def open_door(self, door: str):
        """Open a door."""
        observation, reward, done, info = self.step(door)
        return StepResult(observation, reward, terminated=done, truncated=False, info=info)

    def sample_action(self, rng):
        return None

    def expert_action(self):
        return f'Action: open_door\nAction Input: {{"door": "{self.right}"}}'


def test_calls_in_the_format_of_another_parser_are_not_the_experts_fault():
    finding = only_finding(check_env(ReActExpert), "parser", "warning")
    assert "'Action: open_door" in finding.message
    assert "`--parser react`" in finding.fix
    assert "parser" not in {f.check for f in check_env(ReActExpert, parser="react")}

    class Strict(ReActExpert):
        def step(self, action):
            return super().step({"A": "A", "B": "B", "C": "C"}[action])

    assert [f.check for f in check_env(Strict)] == ["parser", "odd-actions"]


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


def test_tool_calls_count_as_steps():
    finding = only_finding(check_env(PlainTools, num_episodes=2), "termination", "note")
    assert "cut at max_steps=4" in finding.message
    assert "return done=True" in finding.fix


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
clock = SimpleNamespace(now=0.0)


@pytest.fixture
def stopped_clock(monkeypatch):
    """Time passes for the checker only in what hangs, however slow the machine is."""
    stopped = SimpleNamespace(monotonic=lambda: clock.now, perf_counter=time.perf_counter)
    for module in (checker, harness, checks):
        monkeypatch.setattr(module, "time", stopped)
    released.clear()
    yield
    released.set()


def hang(*_args):
    clock.now += 1.0
    released.wait(60)


async def hang_async(*_args):
    hang()  # an async method that blocks all the same


@pytest.mark.usefixtures("stopped_clock")
@pytest.mark.parametrize("method", ["__init__", "reset", "step", "get_state_description"])
@pytest.mark.parametrize("body", [hang, hang_async])
def test_what_hangs_is_a_finding_and_not_a_hang(method, body):
    if body is hang_async and method not in ("reset", "step"):
        return
    env = type("Hanging", (Doors,), {method: body})
    finding = only_finding(check_env(env, timeout=0.2), "timeout")
    assert "did not come back within 0.2 s" in finding.message
    assert method == "__init__" or f"{method}(" in finding.message
