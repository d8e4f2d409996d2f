"""`check_env`: silence about good environments, and the report itself."""

import asyncio
import random
import threading

import pytest

from checker_doors import Doors, only_finding
from turnwise.env.base import BaseEnvironment
from turnwise.env.checker import check_env
from turnwise.errors import ConfigError


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


GOOD = [Doors, SeedArgumentDoors, OwnSpawnDoors, ClassCacheDoors, NoOffers, LoopBoundDoors]


@pytest.mark.parametrize("env", GOOD, ids=lambda env: env.__name__)
def test_a_good_environment_has_no_findings(env):
    report = check_env(env)
    assert report.findings == [], str(report)
    assert report.skipped == []
    assert report.ok


def make_doors():
    return Doors()


def make_doors_with(config):
    return Doors(config)


def test_an_instance_and_a_factory_are_taken_too():
    used = Doors()
    used.reset()
    used.step("A")
    for source in (used, make_doors, make_doors_with):
        assert check_env(source).findings == []
    assert used.opened == ["A"]  # a copy was played


def test_the_config_reaches_the_environment():
    class Sized(Doors):
        def reset(self):
            assert self.config["size"] == 4
            return super().reset()

    assert check_env(Sized, {"size": 4}).ok
    assert only_finding(check_env(Sized, {"size": 5}), "exceptions")


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
