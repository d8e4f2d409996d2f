"""`turnwise play`: a person or a scripted player plays an environment in the terminal."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnwise.cli.common import EnvironmentName, MaxSteps, Parameters

if TYPE_CHECKING:
    from turnwise.cli.screen import Screen
    from turnwise.env.base import BaseEnvironment
    from turnwise.types import Trajectory


class PlayerName(StrEnum):
    human = "human"
    expert = "expert"
    random = "random"


def play(
    env: EnvironmentName,
    player: Annotated[PlayerName, typer.Option(help="Who plays.")] = PlayerName.human,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the first episode.", show_default="random")
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="How many to play.")] = 1,
    max_steps: MaxSteps = None,
    param: Parameters = None,
    delay: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Pause before a scripted action.")
    ] = 0.0,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of a failure.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print each episode of a scripted player as JSON.")
    ] = False,
) -> None:
    """Play an environment in the terminal, or watch a scripted player do it.

    While you play, [bold]?[/bold] shows the state, [bold]hint[/bold] asks the expert and
    [bold]quit[/bold] leaves.

    [bold]Examples[/bold]

    turnwise play guess-number
    turnwise play grid-world --player expert --delay 0.5
    turnwise play my_env.py:MyEnvironment --player random --episodes 100
    turnwise play gym:FrozenLake-v1 --param map_name=8x8 --seed 7
    turnwise play shop --player expert --episodes 10 --json | jq .reward
    """
    from turnwise.cli.common import (
        environment_config,
        make_console,
        make_importable,
        print_json,
    )
    from turnwise.cli.screen import Screen
    from turnwise.env.catalog import environment_factory
    from turnwise.errors import ConfigError, TurnwiseError

    if as_json and player is PlayerName.human:
        raise ConfigError("--json is for scripted players: --player expert or --player random")
    first_seed = random.randrange(10_000) if seed is None else seed
    is_brief = player is not PlayerName.human and episodes > 1
    screen = Screen(make_console(quiet=as_json), env, is_brief=is_brief)
    trajectories: list[Trajectory] = []
    make_importable(env)
    try:
        factory = environment_factory(env, environment_config(env, param, max_steps))
        choose = _chooser(player, screen, first_seed, delay)
        for index in range(episodes):
            trajectories.append(_play_episode(factory(), choose, first_seed + index, screen))
            if as_json:
                print_json(_as_json(trajectories[-1]), indent=None)
    except (KeyboardInterrupt, EOFError):
        screen.left()
    except Exception as error:  # a failure of the environment: the user's own code, so in brief
        if debug or isinstance(error, TurnwiseError):
            raise
        screen.failed(error)
        raise typer.Exit(1) from None
    if episodes > 1 and trajectories:
        screen.summary(trajectories, player.value)


def _as_json(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "seed": trajectory.seed,
        "status": trajectory.status,
        "success": trajectory.success,
        "reward": trajectory.total_reward,
        "turns": [
            {"action": action, "reward": reward, "info": info}
            for action, reward, info in zip(
                trajectory.actions, trajectory.rewards, trajectory.infos, strict=True
            )
        ],
    }


def _chooser(
    player: PlayerName, screen: Screen, seed: int, delay: float
) -> Callable[[BaseEnvironment], str]:
    from turnwise.env.players import expert_player, random_player

    if player is PlayerName.human:
        return screen.ask
    scripted = expert_player if player is PlayerName.expert else random_player(seed)

    def choose(env: BaseEnvironment) -> str:
        time.sleep(delay)
        action = scripted(env, "")
        assert isinstance(action, str)
        screen.action(action)
        return action

    return choose


def _play_episode(
    env: BaseEnvironment,
    choose: Callable[[BaseEnvironment], str],
    seed: int,
    screen: Screen,
) -> Trajectory:
    """Not `play_episode`: a person's failing environment should show its own exception, and
    Ctrl-C must reach `input` at once, which a running event loop would not let it."""
    import asyncio

    from turnwise.env.driver import reset_environment, step_environment
    from turnwise.types import EpisodeStatus, Trajectory

    trajectory = Trajectory(seed=seed)
    loop = asyncio.new_event_loop()
    try:
        observation = loop.run_until_complete(reset_environment(env, seed))
        screen.opening(env, observation, trajectory)
        while True:
            action = choose(env)
            result = loop.run_until_complete(step_environment(env, action))
            trajectory.actions.append(action)
            trajectory.rewards.append(result.reward)
            trajectory.infos.append(result.info)
            screen.turn(result)
            if result.done:
                break
    finally:
        env.close()
        loop.close()
    if result.truncated:
        by_itself = bool(result.info.get("truncated"))
        trajectory.status = (
            EpisodeStatus.TRUNCATED_BY_ENVIRONMENT
            if by_itself
            else EpisodeStatus.TRUNCATED_BY_TURNS
        )
    screen.ending(trajectory)
    return trajectory
