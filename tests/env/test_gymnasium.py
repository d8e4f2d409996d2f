"""Registered Gymnasium environments, told in words and played in words."""

import random
import re
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium")

import gymnasium
from gymnasium import spaces, wrappers

from turnwise.env.adapters.gymnasium import GymnasiumEnvironment
from turnwise.env.catalog import environment_factory
from turnwise.env.players import expert_player, play_episode, random_player
from turnwise.errors import ConfigError
from turnwise.types import EpisodeStatus, Trajectory

NAMED = ["CartPole-v1", "FrozenLake-v1", "Taxi-v4", "Blackjack-v1", "MountainCarContinuous-v0"]
OTHERS = ["MountainCar-v0", "CliffWalking-v1", "Acrobot-v1", "Pendulum-v1"]
ACTIONS = {
    "CartPole-v1": ["left", "right"],
    "FrozenLake-v1": ["left", "down", "right", "up"],
    "Taxi-v4": ["south", "north", "east", "west", "pick up", "drop off"],
    "Blackjack-v1": ["stick", "hit"],
    "MountainCarContinuous-v0": ["force", "from -1 to 1"],
}


class Ship(gymnasium.Env):
    """Steer the ship between the rocks.

    This paragraph is not part of the task.
    """

    def __init__(self, action_space: Any = None, observation_space: Any = None, mask: Any = None):
        self.action_space = action_space or spaces.Discrete(3)
        self.observation_space = observation_space or spaces.Box(-1, 1, (2,))
        self.mask = mask
        self.taken: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.taken = []
        return self.observation_space.sample(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action in self.action_space
        self.taken.append(action)
        over = len(self.taken) == 3
        return self.observation_space.sample(), 0.5, over, False, self._info()

    def _info(self) -> dict[str, Any]:
        return {} if self.mask is None else {"action_mask": np.array(self.mask, dtype=np.int8)}


def record(trajectory: Trajectory) -> tuple[Any, ...]:
    return (
        trajectory.prompts,
        trajectory.observations,
        trajectory.rewards,
        trajectory.infos,
        trajectory.status,
    )


def sway(env: Any, observation: str) -> str:
    """Keeps the pole upright for a while."""
    return ("left", "right")[env.step_count % 2]


@pytest.mark.parametrize("name", NAMED + OTHERS)
def test_a_random_episode_runs_to_its_end_and_its_seed_repeats_it(name):
    env = GymnasiumEnvironment(name, {"max_steps": 60})
    first = play_episode(env, random_player(1), seed=7)
    assert first.error is None
    assert not any("invalid_action" in info for info in first.infos)
    assert record(play_episode(env.spawn(), random_player(1), seed=7)) == record(first)
    assert record(play_episode(env, random_player(1), seed=7)) == record(first)


@pytest.mark.parametrize("name", NAMED)
def test_the_prompt_names_every_valid_action_and_its_example_is_one(name):
    env = GymnasiumEnvironment(name)
    prompt = env.get_prompt_prefix()
    for action in ACTIONS[name]:
        assert action in prompt
    found = re.search(r"For example: (.*)", prompt)
    assert found is not None
    env.reset(seed=0)
    assert "invalid_action" not in env.step(found[1])[3]


@pytest.mark.parametrize(
    ("name", "arguments", "reward"),
    [
        ("FrozenLake-v1", {"is_slippery": False}, 1),
        ("Taxi-v4", {}, 5),
        ("CliffWalking-v1", {}, -13),
    ],
)
def test_the_expert_succeeds(name, arguments, reward):
    env = GymnasiumEnvironment(name, **arguments)
    for seed in range(3):
        trajectory = play_episode(env, expert_player, seed=seed)
        assert trajectory.success
        assert trajectory.total_reward >= reward


def test_terminated_and_truncated_are_kept_apart():
    cut = play_episode(GymnasiumEnvironment("CartPole-v1", max_episode_steps=20), sway, 0)
    assert (cut.status, cut.num_turns) == (EpisodeStatus.TRUNCATED_BY_ENVIRONMENT, 20)
    assert (cut.infos[-1]["truncated"], cut.infos[-1]["terminated"]) == (True, False)
    assert cut.success

    fallen = play_episode(GymnasiumEnvironment("CartPole-v1"), lambda env, seen: "left", 0)
    assert fallen.status is EpisodeStatus.DONE
    assert (fallen.infos[-1]["truncated"], fallen.infos[-1]["terminated"]) == (False, True)
    assert not fallen.success

    lake = GymnasiumEnvironment("FrozenLake-v1", is_slippery=False)
    drowned = play_episode(lake, lambda env, seen: "right" if env.step_count == 0 else "down", 0)
    assert (drowned.status, drowned.num_turns) == (EpisodeStatus.DONE, 2)
    assert "in a hole" in drowned.observations[-1]


def test_the_limit_is_the_configured_one_or_the_environments_own():
    assert GymnasiumEnvironment("CartPole-v1").max_steps == 500
    short = GymnasiumEnvironment("CartPole-v1", {"max_steps": 7})
    assert play_episode(short, sway, seed=0).num_turns == short.max_steps == 7
    assert "at most 7 actions" in short.get_prompt_prefix()
    assert GymnasiumEnvironment(Ship()).max_steps == 1000
    made = gymnasium.make("CartPole-v1", max_episode_steps=9)
    assert GymnasiumEnvironment(made, {"max_steps": 30}).max_steps == 9


def test_an_invalid_action_takes_a_turn_but_no_step():
    ship = Ship()
    env = GymnasiumEnvironment(ship, invalid_reward=-0.25)
    seen = env.reset(seed=0)
    text, reward, done, info = env.step("ahoy")
    assert (reward, done, info["invalid_action"]) == (-0.25, False, True)
    assert "expected a whole number from 0 to 2" in text
    assert text.endswith(seen)
    assert (env.step_count, ship.taken) == (1, [])
    assert env.get_state_description() == seen


def test_where_steps_cost_an_invalid_action_is_not_cheaper():
    idle = play_episode(GymnasiumEnvironment("Taxi-v4"), lambda env, seen: "hm", seed=0)
    assert idle.status is EpisodeStatus.TRUNCATED_BY_TURNS
    assert idle.total_reward == -200


def test_only_actions_in_the_mask_are_offered_drawn_and_taken():
    ship = Ship(mask=[1, 0, 1])
    env = GymnasiumEnvironment(ship, action_names=["port", "ahead", "starboard"])
    assert env.reset(seed=0).endswith("Possible now: port, starboard.")
    rng = random.Random(0)
    assert {env.sample_action(rng) for _ in range(30)} == {"port", "starboard"}
    text, _, _, info = env.step("ahead")
    assert info["invalid_action"]
    assert "ahead is not possible now" in text
    env.step("starboard")
    assert ship.taken == [2]


def test_an_unknown_environment_is_told_by_its_docstring_and_spaces():
    prompt = GymnasiumEnvironment(Ship()).get_prompt_prefix()
    assert prompt.startswith("Steer the ship between the rocks.\n\n")
    assert "You see a list of 2 numbers, each from -1 to 1." in prompt
    assert "Answer with a whole number from 0 to 2." in prompt


def test_the_user_can_say_it_better():
    settings = {
        "task": "Reach the harbour.",
        "action_names": {"port": "to the left", "ahead": "", "starboard": "to the right"},
        "observation_names": ["wind", "tide"],
    }
    for env in (
        GymnasiumEnvironment(Ship, **settings),
        GymnasiumEnvironment(Ship, {"params": settings}),
    ):
        prompt = env.get_prompt_prefix()
        assert prompt.startswith("Reach the harbour.\n\nYou see:\n- wind\n- tide\n")
        assert "- port (0): to the left\n- ahead (1)\n" in prompt
        assert re.fullmatch(r"wind: \S+\ntide: \S+", env.reset(seed=0))
        assert "invalid_action" not in env.step("Starboard!")[3]
    described = GymnasiumEnvironment(Ship, describe=lambda seen: f"{len(seen)} gulls")
    assert described.reset(seed=0) == described.get_state_description() == "2 gulls"


def test_words_are_left_out_where_a_wrapper_makes_them_untrue():
    flat = GymnasiumEnvironment(wrappers.FlattenObservation(gymnasium.make("FrozenLake-v1")))
    assert flat.reset(seed=0).startswith("[1, 0, 0,")
    assert flat.expert_action() is None
    scaled = wrappers.RescaleAction(gymnasium.make("MountainCarContinuous-v0"), 0, 10)
    env = GymnasiumEnvironment(scaled)
    env.reset(seed=0)
    assert "from 0 to 10" in env.get_prompt_prefix()
    assert env.expert_action() is None


def test_a_rendering_in_text_is_shown_with_its_colours_as_brackets():
    cells = [f"cell {i}" for i in range(16)]
    env = GymnasiumEnvironment("FrozenLake-v1", observation_names=cells, render_mode="ansi")
    assert env.reset(seed=0) == "cell 0\n[S]FFF\nFHFH\nFFFH\nHFFG"


def test_images_are_summarised_with_a_warning():
    image = spaces.Box(0, 255, (10, 10, 3), np.uint8)
    with pytest.warns(UserWarning, match="describe="):
        env = GymnasiumEnvironment(Ship(observation_space=image))
    assert "shape 10 x 10 x 3" in env.reset(seed=0)


def test_spawned_environments_are_apart():
    for source in (Ship, Ship(), "CartPole-v1"):
        env = GymnasiumEnvironment(source)
        first = env.reset(seed=1)
        twin = environment_factory(env)()
        assert isinstance(twin, GymnasiumEnvironment)
        assert twin.reset(seed=2) != first
        twin.step("1")
        assert (env.step_count, env.get_state_description()) == (0, first)
        twin.done = True
        assert (twin.spawn().step_count, twin.spawn().is_done()) == (0, False)


def test_episodes_without_a_seed_differ_between_copies_and_follow_seed():
    env = GymnasiumEnvironment(Ship())
    assert len({twin.reset() for twin in (env, env.spawn(), env.spawn())}) == 3
    env.seed(5)
    first = [env.reset(), env.reset()]
    env.seed(5)
    assert [env.reset(), env.reset()] == first
    assert first[0] != first[1]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"source": "cartpole"}, "Did you mean 'CartPole-v1'"),
        ({"source": "CartPole-v1", "wheels": 4}, "wheels"),
        ({"source": 3}, "got 3"),
        ({"source": dict}, r"a registered id .* got \{\}"),
        ({"source": Ship(), "wheels": 4}, "takes no wheels"),
        ({"source": Ship, "action_names": ["a"]}, "of 3 names"),
        ({"source": Ship, "action_names": "abc"}, "a list or a mapping of 3 names"),
        ({"source": Ship, "action_names": ["pick up", "Pickup", "c"]}, "names, all different"),
        ({"source": Ship, "action_names": ["", "b", "c"]}, "names, all different"),
        ({"source": Ship, "action_names": [True, False, "c"]}, "names, all different"),
        ({"source": Ship(spaces.Text(2)), "action_names": ["a"]}, "of 0 names"),
        ({"source": Ship(spaces.Dict(go=spaces.Discrete(2)))}, "TransformAction"),
        ({"source": Ship(spaces.Graph(spaces.Discrete(2), None))}, "TransformAction"),
        ({"source": Ship, "describe": "short"}, "describe got 'short'"),
    ],
)
def test_a_mistake_is_named_with_its_cure(arguments, problem):
    with pytest.raises(ConfigError, match=problem):
        GymnasiumEnvironment(**arguments)
