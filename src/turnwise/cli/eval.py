"""`turnwise eval`: how good a trained model is, on episodes that training never saw."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from turnwise.cli import completion
from turnwise.cli.common import (
    AsJson,
    MaxSteps,
    Parameters,
    TrustRemoteCode,
    environment_config,
    legible,
    make_console,
    working,
)
from turnwise.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from turnwise.cli.scores import Scores
    from turnwise.config import ConfigStore, EnvironmentConfig
    from turnwise.episode import EpisodeResult
    from turnwise.models import LoadedModel

INTERRUPTED = 130


def evaluate(
    run_or_model: Annotated[
        str,
        typer.Argument(
            metavar="RUN_OR_MODEL",
            help="A run's folder, a checkpoint, or a model: a name, a folder, a Hugging Face id.",
            show_default=False,
            autocompletion=completion.runs_and_models,
        ),
    ],
    env: Annotated[
        str | None,
        typer.Option(
            metavar="ENV",
            help="Another environment.",
            show_default="the run's own",
            autocompletion=completion.environments,
        ),
    ] = None,
    param: Parameters = None,
    max_steps: MaxSteps = None,
    reward: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.PY:NAME", help="Another reward function.", show_default="the run's own"
        ),
    ] = None,
    dataset: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE", help="Rows to evaluate on; may be given many times.", show_default=False
        ),
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="How many to play.")] = 100,
    greedy: Annotated[
        bool, typer.Option("--greedy/--sampled", help="Take the likeliest token, or draw one.")
    ] = True,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Other held-out episodes.", show_default="the run's own"),
    ] = None,
    checkpoint: Annotated[
        str, typer.Option(metavar="WHICH", help="best, last, or the folder of one.")
    ] = "last",
    trust_remote_code: TrustRemoteCode = False,
    as_json: AsJson = False,
    show: Annotated[
        int, typer.Option(min=0, metavar="N", help="Print so many whole conversations.")
    ] = 0,
) -> None:
    """Play held-out episodes with a trained model; beside it, the expert and the random player.

    The same seed means the same episodes for each. Ranges are 95 % intervals.

    [bold]Examples[/bold]

    turnwise eval runs/guess-number
    turnwise eval runs/guess-number --checkpoint best --sampled --episodes 500
    turnwise eval runs/mine --show 3
    turnwise eval smollm2-135m --env grid-world --param size=4
    turnwise eval runs/mine --json | jq .model.success
    """
    from turnwise.cli.scores import Scores, tells_success
    from turnwise.cli.settings import name_code
    from turnwise.user_code import settings_from

    if env is None and (param or max_steps):
        raise ConfigError("--param and --max-steps are for the environment that --env names")
    own = None if env is None else environment_config(env, param, max_steps)
    if own is not None:
        name_code(own.name)
    if reward is not None:
        name_code(reward)
    source = _source(run_or_model, checkpoint)
    with settings_from(source, is_trusted=trust_remote_code):
        with working(f"loading {run_or_model}"):
            given = Given(own, reward, dataset)
            loaded, config = _loaded(run_or_model, source, checkpoint, given, trust_remote_code)
        if seed is not None:
            config.training.seed = seed
        played = _played(loaded, config, episodes, greedy)
    tells = any(tells_success(results) for results in played.values())
    scores = {who: Scores.of(results, tells) for who, results in played.items()}
    if scores["model"] is None:
        why = legible(str(played["model"][0].error))
        raise ConfigError(f"every episode failed, the first one with: {why}")
    facts = {
        "name": run_or_model,
        "environment": config.environment.name,
        "sampling": "greedy" if greedy else "sampled",
        "seed": config.training.seed,
    }
    if as_json:
        figures = {who: found.to_dict() for who, found in scores.items() if found}
        typer.echo(json.dumps({**facts, **figures}, indent=1))
        return
    console = make_console()
    for result in played["model"][:show]:
        _show_conversation(console, result)
    console.print(
        f"{legible(run_or_model)} on {legible(config.environment.name)}, "
        f"{episodes:,} held-out episodes, {facts['sampling']}"
    )
    _show_scores(console, scores)


@dataclass(frozen=True)
class Given:
    """What the command line names instead of the run's own."""

    environment: EnvironmentConfig | None
    reward: str | None
    dataset: list[str] | None


def _source(name: str, checkpoint: str) -> Path | None:
    """The run or the checkpoint whose settings are taken; None for a model."""
    if checkpoint not in ("best", "last"):
        return Path(checkpoint).expanduser()
    folder = Path(name).expanduser()
    is_run = (folder / "checkpoints").is_dir() or (folder / "state.json").is_file()
    return folder if is_run else None


def _loaded(
    name: str,
    source: Path | None,
    checkpoint: str,
    given: Given,
    trust_remote_code: bool,
) -> tuple[LoadedModel, ConfigStore]:
    """The model, and the settings under which it plays."""
    from turnwise.cli.settings import check_code, find_code, run_folders
    from turnwise.config import ConfigStore, DatasetConfig
    from turnwise.trainer.state import load_configured_model, load_trained_model

    if source is None and given.environment is None:
        raise ConfigError(
            f"{name} is not a run, so it does not say what to play. "
            "Name an environment: --env guess-number"
        )
    if source is not None:
        which: Literal["best", "last"] = "best" if checkpoint == "best" else "last"
        loaded, config = load_trained_model(source, which, trust_remote_code=trust_remote_code)
    else:
        config = ConfigStore()
        config.model.model_name = name
        config.model.trust_remote_code = trust_remote_code
        loaded = load_configured_model(config)
    if given.environment is not None:
        # Another environment has other tasks and rewards; what is wanted of them is named too.
        config.environment = given.environment
        config.dataset, config.eval_dataset = DatasetConfig(), DatasetConfig()
        config.reward, config.tools = None, []
    if given.reward is not None:
        config.reward = given.reward
    if given.dataset:
        config.dataset = DatasetConfig()
        config.eval_dataset = DatasetConfig(path=given.dataset)
    # A run lies somewhere below the folder in which its environment was found.
    find_code(config, [] if source is None else run_folders(source))
    check_code(config)
    return loaded, config


def _played(
    loaded: LoadedModel, config: ConfigStore, num_episodes: int, is_greedy: bool
) -> Mapping[str, Sequence[EpisodeResult]]:
    from rich.status import Status

    from turnwise.cli.held_out import play_held_out
    from turnwise.trainer.rollout import Interrupted
    from turnwise.trainer.stopping import StopRequest

    console = make_console(stderr=True)
    status = Status("", console=console)
    stop = StopRequest(lambda text: None)

    def tell(who: str, done: int, total: int) -> None:
        status.update(f"{who}: {done:,} of {total:,} episodes")

    try:
        with status, stop.listening():
            played = play_held_out(loaded, config, num_episodes, is_greedy, stop, tell)
        if stop.is_wanted:
            raise Interrupted
    except (Interrupted, KeyboardInterrupt):
        console.print("interrupted")
        raise typer.Exit(INTERRUPTED) from None
    return played


def _show_conversation(console: Console, result: EpisodeResult) -> None:
    """Every word of an episode, and how it ended."""
    from rich.text import Text

    for agent in result.agents:
        name = f", {legible(agent.name)}" if len(result.agents) > 1 else ""
        console.print(Text(f"seed {result.seed}{name}", "bold"))
        for message in agent.messages:
            style = "bold cyan" if message["role"] == "assistant" else "dim"
            text = legible(str(message.get("content") or "")).strip("\n")
            console.print(Text.assemble((f"{legible(message['role'])}: ", style), text))
        reward = "none" if agent.reward is None else f"{agent.reward.total:.4g}"
        ending = legible(result.error or result.status.value.replace("_", " "))
        console.print(Text(f"reward {reward}, {ending}\n", "dim"))


def _show_scores(console: Console, scores: Mapping[str, Scores | None]) -> None:
    from rich.table import Table

    found = {who: score for who, score in scores.items() if score is not None}
    has_success = any(score.success is not None for score in found.values())
    has_errors = any(score.errors for score in found.values())
    table = Table.grid(padding=(0, 3))
    table.add_column(style="bold")
    names = ["", "success", "reward", "std", "turns", "truncated", "errors"]
    shown = [
        name
        for name in names
        if (name != "success" or has_success) and (name != "errors" or has_errors)
    ]
    for _ in shown[1:]:
        table.add_column(justify="right", no_wrap=True)
    table.add_row(*shown, style="dim")
    for who, score in found.items():
        cells = {
            "": who,
            "success": f"{score.success or 0:.3f} "
            f"({score.success_low or 0:.3f} to {score.success_high or 0:.3f})",
            "reward": f"{score.reward:.4g} ± {score.reward_margin:.2g}",
            "std": f"{score.reward_std:.3g}",
            "turns": f"{score.turns:.2f}",
            "truncated": f"{score.truncated:.1%}",
            "errors": f"{score.errors:.1%}",
        }
        table.add_row(*(cells[name] for name in shown))
    console.print(table)
