"""What a user may write as an environment, and what happens when it is wrong."""

import asyncio

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
