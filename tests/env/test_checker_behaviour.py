"""`check_env` on bad conduct, slowness and hanging: one finding each."""

from __future__ import annotations

import re
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from checker_doors import Doors, only_finding
from turnwise.env import checker
from turnwise.env.base import BaseEnvironment
from turnwise.env.checker import check_env, checks, harness
from turnwise.tools import tool
from turnwise.types import StepResult


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


class RaisesOnSomeSeeds(Doors):
    def step(self, action):
        if self.right == "B":
            raise KeyError("no door")
        return super().step(action)


class Endless(Doors):
    max_steps = 1_000_000
    sample_action = BaseEnvironment.sample_action
    expert_action = BaseEnvironment.expert_action

    def step(self, action):
        return "On and on.", 0.0, False, {}


class AlwaysCut(Endless):
    max_steps = 5


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
    (RaisesOnSomeSeeds, "exceptions", "error", "KeyError: 'no door'", "Fix that line"),
    (Quits, "exceptions", "error", "SystemExit", "Fix that line"),
    (AlwaysCut, "termination", "note", "cut at max_steps=5", "return done=True"),
    (InvalidSamples, "sample-action", "warning", "offered 'open", "as step() reads it"),
    (CarelessSamples, "sample-action", "error", "same generator", "rng.choice(actions)"),
    (NumberSamples, "sample-action", "error", "expected a str or None", "return str(action)"),
    (InvalidExpert, "expert-action", "warning", "offered 'door", "as step() reads it"),
    (CloseOnce, "close", "error", "already closed.* second time", "also twice"),
]


@pytest.mark.parametrize(("env", "check", "level", "message", "fix"), CONDUCT)
def test_bad_conduct(env, check, level, message, fix):
    finding = only_finding(check_env(env, num_episodes=3), check, level)
    assert re.search(message, finding.message)
    assert fix in finding.fix


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
