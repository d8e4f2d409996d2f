"""The two text games of the documents: the room with a monster, and the adventure."""

import pytest

from turnwise.config import ConfigStore
from turnwise.env.games.custom import CustomGameEnvironment
from turnwise.env.games.simple import SimpleGameEnvironment
from turnwise.env.players import play_episode
from turnwise.types import EpisodeStatus


def room_with(monster: str) -> SimpleGameEnvironment:
    env = SimpleGameEnvironment(ConfigStore().environment)
    env.reset()
    env.monster = monster
    return env


def test_the_right_weapon_wins_the_room() -> None:
    env = room_with("troll")
    assert env.step("take sword") == ("You take the sword.", 1.0, False, {})
    assert env.inventory == ["sword"]
    won = ("The troll is defeated. You win!", 5.0, True, {"success": True})
    assert env.step("attack with sword") == won
    assert env.score == 6.0


@pytest.mark.parametrize(
    ("before", "action", "observation"),
    [
        ([], "dance", "Write take or attack and a weapon."),
        ([], "take it", "Name the weapon to take."),
        ([], "attack", "Name the weapon to attack with."),
        ([], "attack with bow", "You do not hold the bow."),
        (["take bow"], "take bow", "You already hold the bow."),
        (["take bow", "take lamp"], "attack", "Name the weapon to attack with."),
    ],
)
def test_what_cannot_be_done_in_the_room_is_explained(
    before: list[str], action: str, observation: str
) -> None:
    env = room_with("troll")
    for earlier in before:
        env.step(earlier)
    assert env.step(action) == (observation, -0.1, False, {"invalid_action": True})


def test_the_adventure_as_documented() -> None:
    env = CustomGameEnvironment({"max_steps": 5})
    assert env.max_steps == 5
    assert env.reset() == (
        "Position: (0, 0). Score: 0. Inventory: empty. Enemy: near. Steps remaining: 5."
    )
    assert env.step("move north")[1:] == (0.1, False, {})
    assert env.position == (0, 1)
    assert env.step("pick up sword")[1:] == (0.5, False, {})
    assert env.inventory == ["sword"]
    assert env.step("attack enemy")[1:] == (0.5, False, {})
    assert env.step("sing a song")[1:] == (-0.1, False, {"invalid_action": True})
    observation, *rest = env.step("complete quest")
    assert rest == [10.0, True, {"success": True}]
    assert observation == (
        "Position: (0, 1). Score: 10. Inventory: sword. Enemy: defeated. Steps remaining: 0."
    )
    assert env.done


def test_the_last_step_ends_the_adventure() -> None:
    env = CustomGameEnvironment({"max_steps": 2})
    episode = play_episode(env, lambda env, observation: "move east")
    assert episode.dones == [False, True]
    assert episode.infos[-1] == {"success": False}
    assert episode.status is EpisodeStatus.DONE
