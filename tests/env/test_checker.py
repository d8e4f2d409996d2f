"""`check_env`: one broken environment for each finding, and silence about good ones."""

from __future__ import annotations

import asyncio
import random
import re
import sys
import threading
import time

import numpy as np
import pytest

from turnwise.env.base import BaseEnvironment
from turnwise.env.checker import CheckReport, check_env
from turnwise.errors import ConfigError, EnvironmentFault


class Doors(BaseEnvironment):
    """Three doors, one of them right: a sound environment that the broken ones derive from."""

    max_steps = 6

    def reset(self):
        self.right = self.rng.choice("ABC")
        self.opened = []
        return "Which door, A, B or C?"

    def step(self, action):
        door = action.strip().upper()
        if door not in ("A", "B", "C"):
            return "Say A, B or C.", 0.0, False, {"invalid_action": True}
        self.opened.append(door)
        found = door == self.right
        return "Yes!" if found else "No.", float(found), found, {"success": found}

    def get_state_description(self):
        return f"opened {self.opened}"

    def sample_action(self, rng):
        return rng.choice("ABC")

    def expert_action(self):
        return self.right


def only_finding(report: CheckReport, check: str, level: str = "error"):
    assert [f.check for f in report] == [check], str(report)
    assert report.findings[0].level == level
    assert report.ok is (level != "error")
    return report.findings[0]


# --- good environments -------------------------------------------------------------------------


class AsyncDoors(Doors):
    async def reset(self):
        await asyncio.sleep(0)
        return super().reset()

    async def step(self, action):
        await asyncio.sleep(0)
        return super().step(action)


class SeedArgumentDoors(Doors):
    def reset(self, seed=None):
        self.right = random.Random(seed).choice("ABC")
        self.opened = []
        return "Which door, A, B or C?"


class OwnSpawnDoors(Doors):
    def __init__(self, config=None):
        super().__init__(config)
        self.lock = threading.Lock()

    def spawn(self):
        return type(self)(self.config)


class ClassCacheDoors(Doors):
    """A class-level cache changes, but no episode depends on it."""

    cache: dict = {}  # noqa: RUF012

    def step(self, action):
        self.cache[action] = len(action)
        return super().step(action)


class NoOffers(Doors):
    sample_action = BaseEnvironment.sample_action
    expert_action = BaseEnvironment.expert_action

    def step(self, action):
        return ("Yes.", 1.0, True, {}) if "a" in action.lower() else ("No.", 0.0, False, {})


class LoopBoundDoors(Doors):
    """Keeps a future of its event loop from one call to the next, as network clients do."""

    async def reset(self):
        self.loop = asyncio.get_running_loop()
        return super().reset()

    async def step(self, action):
        future = self.loop.create_future()
        self.loop.call_soon(future.set_result, None)
        await future
        return super().step(action)

    def spawn(self):
        return type(self)(self.config)


GOOD = [Doors, AsyncDoors, SeedArgumentDoors, OwnSpawnDoors, ClassCacheDoors, NoOffers]


@pytest.mark.parametrize("env", [*GOOD, LoopBoundDoors], ids=lambda env: env.__name__)
def test_a_good_environment_has_no_findings(env):
    report = check_env(env)
    assert report.findings == [], str(report)
    assert report.skipped == []
    assert report.ok


def make_doors():
    return Doors()


def make_doors_with(config):
    return Doors(config)


def test_an_instance_a_factory_and_a_file_are_taken_too(tmp_path):
    file = tmp_path / "my_env.py"
    file.write_text(
        "from turnwise.env import BaseEnvironment\n"
        "class Echo(BaseEnvironment):\n"
        "    def reset(self): return 'Say hello.'\n"
        "    def step(self, action): return 'Thanks.', float('hello' in action), True, {}\n"
        "    def get_state_description(self): return 'waiting'\n"
    )
    used = Doors()
    used.reset()
    used.step("A")
    for source in (used, make_doors, make_doors_with, f"{file}:Echo"):
        assert check_env(source).findings == []
    assert used.opened == ["A"]  # a copy was played


def test_it_works_inside_a_running_event_loop():
    async def notebook_cell():
        return check_env(Doors)

    assert asyncio.run(notebook_cell()).ok


def test_the_config_reaches_the_environment():
    class Sized(Doors):
        def reset(self):
            assert self.config["size"] == 4
            return super().reset()

    assert check_env(Sized, {"size": 4}).ok
    assert only_finding(check_env(Sized, {"size": 5}), "exceptions")


# --- making it, and its shape ------------------------------------------------------------------


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


class NoConfig(Doors):
    def __init__(self):
        super().__init__()


class RaisesWhenMade(Doors):
    def __init__(self, config=None):
        raise FileNotFoundError("words.txt")


class OwnRng(Doors):
    def __init__(self, config=None):
        super().__init__(config)
        self.rng = random.Random(1)


class ResetNeedsArguments(Doors):
    def reset(self, level):
        return super().reset()


class StepWithoutAction(Doors):
    def step(self):
        return super().step("A")


class HiddenSeed(Doors):
    def __init__(self, config=None):
        super().__init__(config)
        self.seed = 7


class AsyncState(Doors):
    async def get_state_description(self):
        return "state"


class SampleWithoutRng(Doors):
    def sample_action(self):
        return "A"


class NoLimit(Doors):
    max_steps = None


MISSHAPEN = [
    (NotDerived, "base-class", "NotDerived", "class NotDerived(BaseEnvironment):"),
    (NotDerived(), "base-class", "instance of NotDerived", "class NotDerived(BaseEnvironment):"),
    (make_the_wrong_thing, "base-class", "NotDerived", "derives from BaseEnvironment"),
    (NoStep, "signature", r"no step\(\)", "def step(self, action: str)"),
    (NoConfig, "signature", "positional argument", "def __init__(self, config=None)"),
    (RaisesWhenMade, "exceptions", r"words.txt \(test_checker.py, line \d+\)", "Mend that line"),
    (OwnRng, "signature", "rng", "Delete the line `self.rng = ...`"),
    (ResetNeedsArguments, "signature", r"reset\(level\)", "def reset(self) -> str:"),
    (StepWithoutAction, "signature", r"step\(\)", "def step(self, action: str)"),
    (HiddenSeed, "signature", "seed is 7", "self.own_seed = ..."),
    (AsyncState, "signature", "is async", "def get_state_description(self) -> str:"),
    (SampleWithoutRng, "signature", r"sample_action\(\)", "rng: random.Random"),
    (NoLimit, "max-steps", "max_steps is None", "max_steps = 20"),
]


@pytest.mark.parametrize(("env", "check", "message", "cure"), MISSHAPEN)
def test_a_misshapen_environment(env, check, message, cure):
    finding = only_finding(check_env(env), check)
    assert re.search(message, finding.message)
    assert cure in finding.cure


def test_a_gymnasium_environment_is_sent_to_its_adapter():
    class CartPole:
        __module__ = "gymnasium.envs.classic_control"

    assert "gym:" in only_finding(check_env(CartPole()), "base-class").cure


# --- what reset and step return ----------------------------------------------------------------


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


class NumberReset(Doors):
    def reset(self):
        super().reset()
        return 3


class ForgotReturn(Doors):
    def step(self, action):
        super().step(action)


class StateDict(Doors):
    def get_state_description(self):
        return {"opened": self.opened}


class PromptNone(Doors):
    def get_prompt_prefix(self):
        return None


ANSWERS = [
    (GymnasiumReset, "reset", "error", r"tuple.*Gymnasium", "return observation"),
    (EmptyReset, "reset", "warning", "returned ' '", "get_state_description"),
    (NumberReset, "reset", "error", "type int, expected str", "in words"),
    (doors_that_answer(truncated=False), "step", "error", "5 values, expected 4", "Return (obs"),
    (ForgotReturn, "step", "error", "None, expected 4", "Return (observation"),
    (doors_that_answer(observation=7), "step", "error", "expected str", "in words"),
    (doors_that_answer(observation="", done=False), "step", "warning", "returned.*''", "Say what"),
    (doors_that_answer(reward="much"), "step", "error", "reward of type str", "0.0"),
    (doors_that_answer(reward=float("nan")), "step", "error", "nan, expected a finite", "division"),
    (doors_that_answer(reward=-np.inf), "step", "error", "-inf, expected a finite", "division"),
    (doors_that_answer(done="no"), "step", "error", "done='no'", "a bool"),
    (doors_that_answer(info=[]), "step", "error", "info of type list", "Return {}"),
    (StateDict, "state-description", "error", "opened.*expected a str", "return str(...)"),
    (PromptNone, "prompt-prefix", "error", "None, expected a str", "return str(...)"),
]


@pytest.mark.parametrize(("env", "check", "level", "message", "cure"), ANSWERS)
def test_wrong_answers(env, check, level, message, cure):
    # Never-ending episodes are worth a note as well; that is not what is looked at here.
    report = check_env(env)
    report.findings = [finding for finding in report if finding.check != "termination"]
    finding = only_finding(report, check, level)
    assert re.search(message, finding.message)
    assert cure in finding.cure


# --- repeatable episodes -----------------------------------------------------------------------


class ModuleRandom(Doors):
    def reset(self):
        super().reset()
        self.right = random.choice("ABC")
        return f"Which door? Perhaps {random.random()}"


class NumpyRandom(Doors):
    def step(self, action):
        observation, reward, done, info = super().step(action)
        return observation, reward + 1e-3 * float(np.random.rand()), done, info


class OwnUnseededRandom(Doors):
    def reset(self):
        super().reset()
        return f"Door {random.Random().random()}?"


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


class SeedIgnored(Doors):
    def reset(self, seed=None):
        self.opened = []
        self.right = "A"
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


BLACKBOARD: dict = {}


class GlobalBlackboard(Doors):
    def reset(self):
        BLACKBOARD["count"] = 0
        return super().reset()

    def step(self, action):
        BLACKBOARD["count"] += 1
        observation, reward, done, info = super().step(action)
        return f"{observation} {BLACKBOARD['count']}", reward, done, info


REPEATS = [
    (ModuleRandom, "seeds", "error", "two different episodes", "instead of `random`"),
    (NumpyRandom, "seeds", "error", "the reward was", "instead of `numpy.random`"),
    (OwnUnseededRandom, "seeds", "error", r"after reset\(\) the observation", "`self.rng`"),
    (SeedZeroForgotten, "seeds", "error", "seed 0", "if seed is not None:"),
    (SeedsTheModule, "global-random", "warning", r"reset\(\) draws.*random", "`self.rng`"),
    (SeedIgnored, "seeds-matter", "note", "one and the same", "random.Random(seed)"),
    (CountingState, "state-description", "error", "twice in a row", "no counter"),
    (ChangingState, "state-description", "error", "changes the episode", "Only read"),
    (LeakyScore, "leaked-state", "error", "Score 1.*Score", "self.score"),
    (EmptiedDeck, "leaked-state", "error", "IndexError", "self.deck"),
    (ClassHistory, "shared-state", "error", "ClassHistory.history", "`self.history = ...` in re"),
    (ClearedClassHistory, "shared-state", "error", "same time.*history", "`self.history = ...`"),
    (GlobalBlackboard, "shared-state", "error", "same time", "global variables"),
]


@pytest.mark.parametrize(("env", "check", "level", "message", "cure"), REPEATS)
def test_episodes_that_cannot_be_repeated(env, check, level, message, cure):
    finding = only_finding(check_env(env), check, level)
    assert re.search(message, finding.message)
    assert cure in finding.cure


# --- copies ------------------------------------------------------------------------------------


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
    assert "self.lock" in as_class.message
    as_instance = only_finding(check_env(Uncopyable()), "spawn", "error")
    assert "Pass the class" in as_instance.cure
    assert "def spawn(self)" in as_instance.cure


@pytest.mark.parametrize("env", [SpawnsItself, ShallowSpawn])
def test_a_spawn_that_shares(env):
    assert "def spawn(self)" in only_finding(check_env(env), "spawn").cure


def test_an_instance_whose_copies_share_is_found():
    assert only_finding(check_env(ShallowSpawn()), "shared-state")


# --- conduct -----------------------------------------------------------------------------------


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


class Endless(NoOffers):
    max_steps = 1_000_000

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


class PoorExpert(Doors):
    def expert_action(self):
        return "A" if self.right != "A" else "B"


class InvalidExpert(Doors):
    def expert_action(self):
        return f"door {self.right}"


class OneInfo(Doors):
    def reset(self):
        self.info = {}
        return super().reset()

    def step(self, action):
        observation, reward, done, info = super().step(action)
        self.info.update(info, count=len(self.opened))
        return observation, reward, done, self.info


class CloseOnce(Doors):
    handle = "open"

    def close(self):
        if self.handle is None:
            raise ValueError("already closed")
        self.handle = None


class NeverCloses(Doors):
    def close(self):
        raise OSError("disk is gone")


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
    (NumbersOnlyWithoutOffers, "odd-actions", "error", "raised ValueError", "'invalid_action'"),
    (OneThread, "threads", "error", "another thread", "check_same_thread=False"),
    (RaisesOnSomeSeeds, "exceptions", "error", "KeyError: 'no door'", "Mend that line"),
    (Quits, "exceptions", "error", "SystemExit", "Mend that line"),
    (AlwaysCut, "termination", "note", "cut at max_steps=5", "return done=True"),
    (InvalidSamples, "sample-action", "warning", "offered 'open", "as step() reads it"),
    (CarelessSamples, "sample-action", "error", "same generator", "rng.choice(actions)"),
    (NumberSamples, "sample-action", "error", "expected a str or None", "return str(action)"),
    (PoorExpert, "expert-action", "warning", "less an episode than random", "return None"),
    (InvalidExpert, "expert-action", "warning", "offered 'door", "as step() reads it"),
    (OneInfo, "info", "warning", "became", "dict(self.info)"),
    (CloseOnce, "close", "error", "already closed.* second time", "also twice"),
    (NeverCloses, "close", "error", "disk is gone", "also twice"),
]


@pytest.mark.parametrize(("env", "check", "level", "message", "cure"), CONDUCT)
def test_bad_conduct(env, check, level, message, cure):
    finding = only_finding(check_env(env, num_episodes=3), check, level)
    assert re.search(message, finding.message)
    assert cure in finding.cure


def test_an_episode_without_an_end():
    finding = only_finding(check_env(Endless, num_episodes=1), "termination")
    assert "no episode ended within 1000 turns, and max_steps is 1000000" in finding.message
    assert "max_steps = 50" in finding.cure


def test_slow_steps_are_measured():
    finding = only_finding(check_env(Slow, num_episodes=1, slow_after=0.002), "slow", "warning")
    milliseconds = re.search(r"takes (\d+) ms", finding.message)
    assert milliseconds is not None
    assert int(milliseconds[1]) >= 5
    assert "async def step" in finding.cure


def hang(*_args):
    time.sleep(3)


async def hang_async(*_args):
    time.sleep(3)  # an async method that blocks all the same


@pytest.mark.parametrize("method", ["__init__", "reset", "step", "get_state_description"])
@pytest.mark.parametrize("body", [hang, hang_async])
def test_what_hangs_is_a_finding_and_not_a_hang(method, body):
    if body is hang_async and method not in ("reset", "step"):
        return
    env = type("Hanging", (Doors,), {method: body})
    start = time.monotonic()
    finding = only_finding(check_env(env, timeout=0.2), "timeout")
    assert time.monotonic() - start < 2
    assert "did not come back within 0.2 s" in finding.message
    assert method == "__init__" or f"{method}(" in finding.message


def test_a_text_that_makes_a_step_hang_is_named():
    class Backtracks(Doors):
        def step(self, action):
            if len(action) > 1000:
                time.sleep(3)
            return super().step(action)

    assert "'word word" in only_finding(check_env(Backtracks, timeout=0.2), "timeout").message


# --- the report --------------------------------------------------------------------------------


def test_the_report_reads_well_and_can_be_raised():
    report = check_env(LeakyScore)
    text = str(report)
    assert text.startswith("LeakyScore: 1 error\nerror [leaked-state] ")
    assert "\n  cure: Set self.score anew in reset()" in text
    assert "not run until this is mended: seeds-matter, spawn" in text
    assert "seeds" in report.passed
    with pytest.raises(EnvironmentFault, match="leaked-state"):
        check_env(LeakyScore, raise_on_error=True)
    assert check_env(AlwaysCut, raise_on_error=True).of_level("note")


def test_everything_that_was_made_is_closed():
    made = []

    class Counted(Doors):
        num_closes = 0

        def __init__(self, config=None):
            super().__init__(config)
            made.append(self)

        def close(self):
            self.num_closes += 1

    assert "close" in check_env(Counted).passed
    assert {env.num_closes for env in made} == {2}


def test_arguments_that_make_no_sense():
    with pytest.raises(ConfigError, match="num_episodes=0"):
        check_env(Doors, num_episodes=0)
    with pytest.raises(ConfigError, match="no environment 'gues-number'"):
        check_env("gues-number")
