"""`turnwise play`: plays episodes in the terminal, or shows a trained agent playing."""

import dataclasses
import random
from typing import Annotated

import typer

from turnwise.cli import options as opt
from turnwise.cli.run_paths import find_source
from turnwise.cli.settings import Overrides, open_settings
from turnwise.errors import ConfigError


def play(
    ctx: typer.Context,
    env_or_run: Annotated[
        str | None,
        opt.argument(
            "[ENV_OR_RUN]",
            opt.ENV_OR_RUN,
            "the environment of the run that plays",
        ),
    ] = None,
    player: Annotated[
        str,
        typer.Option(
            metavar="WHO",
            help="human, expert or random; the folder of a run or a checkpoint, or a model; or "
            "FILE.PY:NAME, a function from the observation to the action.",
        ),
    ] = "human",
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the first episode.", show_default="random")
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Number of episodes.")] = 1,
    max_steps: opt.MaxSteps = None,
    param: opt.Parameters = None,
    env: opt.EnvironmentOption = None,
    reward: opt.RewardOption = None,
    dataset: opt.DatasetOption = None,
    tool: opt.ToolOption = None,
    parser: opt.ParserOption = None,
    system_prompt: opt.SystemPromptOption = None,
    model: opt.ModelOption = None,
    part: opt.PartOption = None,
    checkpoint: opt.CheckpointOption = "last",
    greedy: Annotated[
        bool, typer.Option("--greedy/--sampled", help="Greedy decoding, or sampling.")
    ] = True,
    delay: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Pause before each action.")
    ] = 0.0,
    trust_remote_code: opt.TrustRemoteCode = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of a failure.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print each episode as a line of JSON.")
    ] = False,
) -> None:
    """Play an environment in the terminal, or watch a trained agent or a scripted player.

    In the game, [bold]?[/bold] shows the state, [bold]hint[/bold] shows the expert's action,
    [bold]/tool name=value[/bold] calls a tool and [bold]quit[/bold] exits.

    [bold]Examples[/bold]

    turnwise play guess-number
    turnwise play --player runs/mine
    turnwise play runs/mine
    turnwise play grid-world --player expert --delay 0.5
    turnwise play my_env.py:MyEnvironment --player random --episodes 100
    turnwise play runs/mine --player runs/mine/checkpoints/step-00000010 --sampled
    turnwise play gym:FrozenLake-v1 --param map_name=8x8 --seed 7
    turnwise play grid-world --player expert --episodes 10 --json | jq .reward
    """
    from turnwise.cli.common import make_console, print_json, working
    from turnwise.cli.play_episodes import WITHOUT_MODEL, Played, Screen, play_episodes
    from turnwise.errors import TurnwiseError
    from turnwise.user_code import settings_from

    if as_json and player == "human":
        raise ConfigError("--json is not for a human: name --player expert, random or a run")
    env_run = find_source(env_or_run)
    player_run = None if player in WITHOUT_MODEL else find_source(player, checkpoint)
    overrides = Overrides.typed(ctx.params)
    # Only an environment, without other components: nothing imports torch.
    plain = Overrides(env=env, param=param, max_steps=max_steps)
    is_bare = env_run is None and overrides == plain
    if env_or_run is None and player_run is None:
        raise ConfigError(
            "no environment is named. Name one (turnwise play guess-number) or a "
            "run: turnwise play runs/mine, turnwise play --player runs/mine"
        )
    if env_or_run is None:
        env_run = player_run
    elif env_run is None:
        if env is not None:
            raise ConfigError(
                f"got the environment {env_or_run} and --env {env}. Name one of them; "
                "--env is for a run whose own environment cannot be restored."
            )
        overrides = dataclasses.replace(overrides, env=env_or_run)
    is_function = player not in WITHOUT_MODEL and player_run is None and ".py:" in player
    overrides.allow_code(player if is_function else None)
    name = env_or_run or player
    is_brief = player != "human" and episodes > 1
    screen = Screen(make_console(quiet=as_json), name, player, delay, is_brief)
    first_seed = random.randrange(10_000) if seed is None else seed
    played: list[Played] = []
    try:
        source = env_run or player_run
        with settings_from(source, is_trusted=trust_remote_code):
            with working(f"loading {name}"):
                config = open_settings(source, overrides, is_checked=source is not None)
            if env_run is not None:
                screen.name = f"{config.environment.name} of {name}"
            for episode in play_episodes(
                config,
                screen,
                range(first_seed, first_seed + episodes),
                run=player_run,
                checkpoint=checkpoint,
                model=model,
                is_greedy=greedy,
                debug=debug,
                trust_remote_code=trust_remote_code,
                is_bare=is_bare,
            ):
                played.append(episode)
                if as_json:
                    print_json(episode.to_dict(), indent=None)
    except (KeyboardInterrupt, EOFError):
        screen.left()
    except Exception as error:  # raised by the user's environment: print it without a traceback
        if debug or isinstance(error, TurnwiseError | typer.Exit):
            raise
        screen.failed(error)
        raise typer.Exit(1) from None
    if episodes > 1 and played:
        screen.summary(played)
