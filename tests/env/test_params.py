"""`environment.params` are keyword arguments of the environment's constructor."""

import functools

import pytest

from turnwise import BaseEnvironment, Trainer
from turnwise.env import environment_factory, make_environment
from turnwise.errors import ConfigError


class Maze(BaseEnvironment):
    def __init__(self, size, colour="red", walls=()):
        super().__init__()
        self.size, self.colour, self.walls = size, colour, walls

    def reset(self):
        return f"{self.size} {self.colour}"

    def step(self, action):
        return "", 0.0, True, {}

    def get_state_description(self):
        return ""


class OfConfig(Maze):
    def __init__(self, config, colour="red"):
        BaseEnvironment.__init__(self, config)
        self.size, self.colour = self.config.get("size", 4), colour


class PassesOn(OfConfig):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)


class TakesAny(Maze):
    def __init__(self, size=1, **more):
        super().__init__(size)
        self.more = more


def make_maze(size=2, colour="green"):
    return Maze(size, colour)


def params(**values):
    return {"params": values}


def test_params_are_keyword_arguments():
    env = make_environment(Maze, params(size=5))
    assert (env.size, env.colour) == (5, "red")
    env = make_environment(Maze, params(size=5, colour="blue") | {"max_steps": 7})
    assert (env.size, env.colour, env.max_steps) == (5, "blue", 7)
    assert make_environment(TakesAny, params(size=2, door=1)).more == {"door": 1}


def test_a_class_that_takes_config_gets_all_settings():
    for kind in (OfConfig, PassesOn):
        env = make_environment(kind, params(size=5, colour="blue") | {"max_steps": 3})
        assert (env.size, env.colour, env.max_steps) == (5, "blue", 3)
        assert env.config.params == {"size": 5, "colour": "blue"}


def test_factories_take_params_too():
    assert make_environment(make_maze).reset() == "2 green"
    assert make_environment(make_maze, params(size=9)).reset() == "9 green"
    assert make_environment(functools.partial(Maze, 8), params(colour="x")).reset() == "8 x"
    assert make_environment(lambda config: Maze(config.get("size")), params(size=6)).size == 6
    assert make_environment(lambda cfg: Maze(cfg.get("size")), params(size=6)).size == 6


def test_params_are_copied_once_and_not_for_each_environment():
    walls = [1]
    make = environment_factory(Maze, params(size=1, walls=walls))
    make().walls.append(2)
    assert walls == [1]
    assert make().walls is make().walls


@pytest.mark.parametrize("source", [Maze, make_maze])
def test_an_unknown_name_is_refused_with_the_nearest(source):
    with pytest.raises(ConfigError, match=r"params has 'siez'.*Did you mean 'size'\?"):
        environment_factory(source, params(siez=5))
    with pytest.raises(ConfigError, match=r"params has 'size', and .*<lambda> takes no arguments"):
        environment_factory(lambda: Maze(1), params(size=5))


def test_a_missing_argument_is_named_with_the_setting():
    with pytest.raises(ConfigError, match=r"missing a required argument: 'size'.*-p size=\.\.\."):
        environment_factory(Maze)


def test_the_trainer_refuses_them_before_there_is_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="Did you mean 'size'"):
        Trainer({"environment": params(siez=5)}, Maze).fit()
    assert list(tmp_path.iterdir()) == []
