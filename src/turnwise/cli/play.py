"""`turnwise play`: a person, a scripted player or a trained agent plays in the terminal."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnwise.cli import completion
from turnwise.cli.common import MaxSteps, Parameters, TrustRemoteCode
from turnwise.cli.run_parts import (
    CheckpointOption,
    DatasetOption,
    EnvironmentOption,
    ModelOption,
    ParserOption,
    PartOption,
    RewardOption,
    Supplied,
    SystemPromptOption,
    ToolOption,
)
from turnwise.errors import ConfigError

if TYPE_CHECKING:
    from turnwise.cli.play_loop import Played


def play(
    env: Annotated[
        str | None,
        typer.Argument(
            metavar="[ENV_OR_RUN]",
            help="A name that `turnwise envs` lists, your own (path/to/file.py:ClassName), or the "
            "folder of a run: its environment, with its parameters, tools and dataset.",
            show_default="the environment of the run that plays",
            autocompletion=completion.environments_and_runs,
        ),
    ] = None,
    player: Annotated[
        str,
        typer.Option(
            metavar="WHO",
            help="Who plays: human, expert, random; a run's folder, a checkpoint or a model; or "
            "FILE.PY:NAME, a function from the observation to the action.",
            autocompletion=completion.players,
        ),
    ] = "human",
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the first episode.", show_default="random")
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="How many to play.")] = 1,
    max_steps: MaxSteps = None,
    param: Parameters = None,
    other_env: EnvironmentOption = None,
    reward: RewardOption = None,
    dataset: DatasetOption = None,
    tool: ToolOption = None,
    parser: ParserOption = None,
    system_prompt: SystemPromptOption = None,
    model: ModelOption = None,
    part: PartOption = None,
    checkpoint: CheckpointOption = "last",
    greedy: Annotated[
        bool, typer.Option("--greedy/--sampled", help="Take the likeliest token, or draw one.")
    ] = True,
    delay: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Pause before an action.")
    ] = 0.0,
    trust_remote_code: TrustRemoteCode = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of a failure.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print each episode as JSON; not for a human.")
    ] = False,
) -> None:
    """Play an environment in the terminal, or watch a trained agent or a scripted player do it.

    While you play, [bold]?[/bold] shows the state, [bold]hint[/bold] asks the expert,
    [bold]/tool name=value[/bold] calls a tool and [bold]quit[/bold] leaves.

    [bold]Examples[/bold]

    turnwise play guess-number
    turnwise play --player runs/mine
    turnwise play runs/mine
    turnwise play grid-world --player expert --delay 0.5
    turnwise play my_env.py:MyEnvironment --player random --episodes 100
    turnwise play runs/mine --player runs/mine/checkpoints/step-00000010 --sampled
    turnwise play gym:FrozenLake-v1 --param map_name=8x8 --seed 7
    turnwise play shop --player expert --episodes 10 --json | jq .reward
    """
    from turnwise.cli.common import make_console, print_json
    from turnwise.cli.screen import Screen
    from turnwise.cli.stage import IN_THE_TERMINAL, find_stage, played_here, watched
    from turnwise.errors import TurnwiseError

    if as_json and player == "human":
        raise ConfigError("--json is for others than a human: --player expert, random or a run")
    first_seed = random.randrange(10_000) if seed is None else seed
    supplied = Supplied(
        other_env, param, max_steps, reward, dataset, tool, parser, system_prompt, model, part
    )
    stage = find_stage(env, player, checkpoint, supplied, trust_remote_code)
    is_brief = player != "human" and episodes > 1
    screen = Screen(make_console(quiet=as_json), stage.name, is_brief=is_brief)
    played: list[Played] = []
    seeds = range(first_seed, first_seed + episodes)
    try:
        with stage.settings() as config:
            if stage.environment_run is not None:
                screen.name = f"{config.environment.name} of {stage.name}"
            if player in IN_THE_TERMINAL:
                found = played_here(config, stage, seeds, screen, delay)
            else:
                found = watched(config, stage, seeds, screen, delay, greedy, debug)
            for episode in found:
                played.append(episode)
                if as_json:
                    print_json(_as_json(episode), indent=None)
    except (KeyboardInterrupt, EOFError):
        screen.left()
    except Exception as error:  # a failure of the environment: the user's own code, so in brief
        if debug or isinstance(error, TurnwiseError | typer.Exit):
            raise
        screen.failed(error)
        raise typer.Exit(1) from None
    if episodes > 1 and played:
        screen.summary(played, player)


def _as_json(played: Played) -> dict[str, Any]:
    trajectory = played.trajectory
    turns = []
    for number, action in enumerate(trajectory.actions):
        turn = {
            "action": action,
            "reward": trajectory.rewards[number],
            "info": trajectory.infos[number],
        }
        if played.calls[number]:
            turn["calls"] = [
                {"name": c.name, "arguments": c.arguments, "success": c.success, "result": c.result}
                for c in played.calls[number]
            ]
        turns.append(turn)
    return {
        "seed": trajectory.seed,
        **({} if played.row is None else {"row": played.row}),
        "status": trajectory.status,
        "success": trajectory.success,
        "reward": trajectory.total_reward,
        **({} if played.score is None else {"score": played.score}),
        "turns": turns,
    }
