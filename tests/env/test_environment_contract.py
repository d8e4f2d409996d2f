"""What a user may write as an environment, and what happens when it is wrong."""

import asyncio
import functools

import pytest

from turnwise import (
    BaseEnvironment,
    ConfigError,
    EnvironmentConfig,
    EnvironmentFault,
    EpisodeStatus,
    environment_factory,
    expert_player,
    make_environment,
    play_episode,
    play_episode_async,
    random_player,
)
from turnwise.env import reset_environment


class Dice(BaseEnvironment):
    """Roll until a six comes."""

    def reset(self):
        return "Roll."

    def step(self, action):
        face = self.rng.randint(1, 6)
        return f"You rolled {face}.", float(face == 6), face == 6, {"success": face == 6}

    def get_state_description(self):
        return "dice"

    def sample_action(self, rng):
        return "roll"


class Answers(Dice):
    """An environment whose step returns whatever it is told to."""

    def __init__(self, answer, config=None):
        super().__init__(config)
        self.answer = answer

    def step(self, action):
        return self.answer


def roll(env, observation):
    return "roll"


def test_the_same_seed_gives_the_same_episode():
    first, second = (play_episode(Dice(), roll, seed=5) for _ in range(2))
    assert first == second
    assert any(play_episode(Dice(), roll, seed=s) != first for s in range(6, 20))


@pytest.mark.parametrize("config", [None, {}, {"max_steps": 3}, EnvironmentConfig(max_steps=3)])
def test_config_is_nothing_a_dict_or_a_config(config):
    env = Dice(config)
    assert env.max_steps == (3 if config else 10)
    assert env.config.get("anything", "default") == "default"


def test_a_subclass_that_forgets_super_still_works():
    class Forgetful(Dice):
        def __init__(self):
            self.rolls = 0

    env = Forgetful()
    assert (env.done, env.step_count, env.max_steps) == (False, 0, 10)
    assert play_episode(env, roll, seed=1).num_turns >= 1


def test_done_and_underscore_done_are_one_flag():
    env = Dice()
    env._done = True
    assert env.done
    assert env.is_done()
    env.done = False
    assert env._done is False
    env.step_count = env.max_steps
    assert env.is_done()


def test_steps_are_counted_for_those_who_do_not_count_themselves():
    class Counting(Dice):
        def step(self, action):
            self.step_count += 1
            return "on", 0.0, False, {}

    for env in (Counting({"max_steps": 4}), Answers(("on", 0.0, False, {}), {"max_steps": 4})):
        trajectory = play_episode(env, roll)
        assert trajectory.num_turns == env.step_count == 4
        assert trajectory.status is EpisodeStatus.TRUNCATED_BY_TURNS


def test_ending_and_cutting_are_told_apart():
    ended = play_episode(Answers(("end", 1.0, True, {})), roll)
    assert ended.status is EpisodeStatus.DONE
    cut = play_episode(Answers(("end", 1.0, True, {"truncated": True})), roll)
    assert cut.status is EpisodeStatus.TRUNCATED_BY_ENVIRONMENT
    assert cut.status.is_truncated
    assert not cut.status.is_error


def test_async_environments_play_too():
    class Slow(Dice):
        async def reset(self):
            await asyncio.sleep(0)
            return "Roll."

        async def step(self, action):
            await asyncio.sleep(0)
            return "six", 1.0, True, {}

    assert play_episode(Slow(), roll).total_reward == 1.0

    async def many():
        return await asyncio.gather(*(play_episode_async(Slow(), roll) for _ in range(5)))

    assert len(asyncio.run(many())) == 5


def test_the_seed_reaches_reset_if_it_asks_for_it():
    class Seeded(Dice):
        def reset(self, seed=None):
            return f"seed {seed}"

    assert asyncio.run(reset_environment(Seeded(), 7)) == "seed 7"
    assert asyncio.run(reset_environment(Seeded())) == "seed None"


def test_an_observation_may_be_parts_of_text_and_a_picture_is_refused():
    class Gallery(Dice):
        def reset(self):
            parts = [{"type": "text", "text": "Which picture "}, {"type": "text", "text": "is it?"}]
            return parts if self.max_steps == 10 else [*parts, {"type": "image", "image": b"GIF"}]

    assert asyncio.run(reset_environment(Gallery())) == "Which picture is it?"
    with pytest.raises(EnvironmentFault, match=r"reset\(\) returned a part of type 'image'"):
        asyncio.run(reset_environment(Gallery({"max_steps": 3})))


def test_a_failing_player_is_the_callers_own_affair():
    def clumsy(env, observation):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        play_episode(Dice(), clumsy)


def test_players_say_when_an_environment_offers_nothing():
    with pytest.raises(ConfigError, match="expert_action"):
        play_episode(Dice(), expert_player)

    class Mute(Dice):
        def sample_action(self, rng):
            return None

    with pytest.raises(ConfigError, match="sample_action"):
        play_episode(Mute(), random_player(0))


def test_instances_classes_and_factories_make_fresh_environments():
    instance = Dice({"max_steps": 4})

    def without_config():
        return Dice({"max_steps": 4})

    def with_config(config):
        return Dice(config)

    sources = [instance, Dice, without_config, with_config]
    for source in sources:
        make = environment_factory(source, {"max_steps": 4})
        first, second = make(), make()
        assert first is not second
        assert first is not instance
        assert first.max_steps == 4
        play_episode(first, roll, seed=1)
        assert second.step_count == 0
    assert instance.step_count == 0


def test_a_factory_that_makes_something_else_is_named():
    def make_number():
        return 3

    with pytest.raises(EnvironmentFault, match=r"make_number.*int.*BaseEnvironment"):
        make_environment(make_number)


# ---- params are keyword arguments of the constructor ----


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


def test_a_class_without_a_constructor_takes_params_only_if_it_reads_the_config():
    class Reads(Dice):
        def reset(self):
            return str(self.config["sides"])

    assert make_environment(Reads, params(sides=6)).reset() == "6"
    with pytest.raises(ConfigError, match="'sides', and Dice takes no arguments"):
        make_environment(Dice, params(sides=6))


def test_factories_take_params_too():
    assert make_environment(make_maze).reset() == "2 green"
    assert make_environment(make_maze, params(size=9)).reset() == "9 green"
    assert make_environment(functools.partial(Maze, 8), params(colour="x")).reset() == "8 x"
    assert make_environment(lambda config: Maze(config.get("size")), params(size=6)).size == 6
    assert make_environment(lambda c: Maze(c.get("size")), params(size=6)).size == 6


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
