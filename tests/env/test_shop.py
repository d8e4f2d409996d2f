"""The shop: two tools, hidden prices, one purchase."""

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest

from turnwise.env import check_env, expert_player, play_episode, random_player
from turnwise.env.base import BaseEnvironment
from turnwise.env.games.shop import ShopEnvironment
from turnwise.errors import ToolError
from turnwise.tools import JSONActionParser, ToolCall

NUM_EPISODES = 40


def act(name: str, **arguments: Any) -> str:
    return JSONActionParser().render(ToolCall(name, arguments))


def start(seed: int = 0, **config: Any) -> tuple[ShopEnvironment, list[str]]:
    """A shop with a new order, and the choices that its first observation names."""
    env = ShopEnvironment(config)
    env.seed(seed)
    return env, read_choices(env.reset())


def read_choices(observation: str) -> list[str]:
    return observation.partition("Choices: ")[2].rstrip(".").split(", ")


def success_rate(player: Callable[[BaseEnvironment, str], str], **config: Any) -> float:
    wins = [play_episode(ShopEnvironment(config), player, seed=s) for s in range(NUM_EPISODES)]
    return sum(episode.success for episode in wins) / NUM_EPISODES


@pytest.mark.parametrize("num_choices", [2, 3, 4, 5])
def test_the_expert_always_fills_the_order(num_choices: int) -> None:
    assert success_rate(expert_player, num_choices=num_choices) == 1.0


def test_the_cheapest_with_enough_stock_is_right() -> None:
    for seed in range(60):
        env, items = start(seed)
        wanted = int(env.get_state_description().split()[1])
        told = [env.step(act("look_up", item=item))[0] for item in items]
        found = [re.fullmatch(r"(\w+): price (\d+), stock (\d+)\.", text) for text in told]
        shelf = [(int(m[2]), m[1]) for m in found if m is not None and int(m[3]) >= wanted]
        _, reward, done, info = env.step(act("buy", item=min(shelf)[1], quantity=wanted))
        assert (reward, done, info["success"]) == (1.0, True, True)


def test_the_random_player_rarely_succeeds_and_is_always_valid() -> None:
    episodes = [
        play_episode(ShopEnvironment(), random_player(seed), seed=seed) for seed in range(80)
    ]
    assert 0 < sum(episode.success for episode in episodes) < 0.15 * 80
    assert not any(info["invalid_action"] for e in episodes for info in e.infos)


@pytest.mark.parametrize(
    ("action", "told"),
    [
        ("I would like tea.", "found no calls"),
        ('{"tool": "look_up", "arguments": {"item": "te', "ends before it is complete"),
        (act("look_up", item="x") + act("buy", item="x", quantity=1), "found 2 calls"),
        (act("look", item="x"), "Did you mean 'look_up'?"),
        (act("buy", item="x"), "quantity is missing. Call it as buy(item: string"),
        (act("buy", item="x", quantity=0), "greater than or equal to 1"),
        (act("look_up", item="piñata"), "There is no 'pi\\xf1ata'. Choices: "),
        (act("\ud800", item="x"), "there is no tool"),
    ],
)
def test_invalid_actions_are_told_and_cost_a_little(action: str, told: str) -> None:
    env, _ = start()
    before = env.get_state_description()
    observation, reward, done, info = env.step(action)
    assert told in observation
    assert observation.isascii()
    assert -0.1 < reward < 0
    assert not done
    assert info["invalid_action"]
    assert not info["success"]
    assert env.get_state_description() == before


def test_wrong_purchases_close_the_order() -> None:
    for seed in range(8):
        env, items = start(seed)
        while '"look_up"' in (action := env.expert_action()):
            env.step(action)
        right = JSONActionParser().parse(action).calls[0].arguments
        for item in items:
            for quantity in (right["quantity"], right["quantity"] + 1):
                twin = copy.deepcopy(env)
                _, reward, done, info = twin.step(act("buy", item=item, quantity=quantity))
                is_right = {"item": item, "quantity": quantity} == right
                assert (reward, done, info["success"]) == (float(is_right), True, is_right)
                assert twin.step(action)[1:3] == (0.0, True)
                with pytest.raises(ToolError, match="closed"):
                    twin.buy(item, quantity)


def test_the_checker_finds_nothing() -> None:
    assert check_env("shop").findings == []
