"""`turnwise eval`: evaluates a trained model on held-out episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnwise.cli import options as opt
from turnwise.cli.common import legible, make_console, say, working
from turnwise.cli.run_settings import (
    Supplied,
    load_player,
    restore,
    settings_of,
    source_of,
    which_checkpoint,
)
from turnwise.errors import ConfigError

if TYPE_CHECKING:
    from turnwise.cli.agents import ServedModel
    from turnwise.cli.eval_episodes import EvalRows, Plan
    from turnwise.config import ConfigStore
    from turnwise.episode import EpisodeResult
    from turnwise.models import LoadedModel
    from turnwise.trainer.components import UserComponents

INTERRUPTED = 130


class SplitName(StrEnum):
    train = "train"
    eval = "eval"


def evaluate(
    run_or_model: Annotated[
        str | None,
        opt.argument(
            "[RUN_OR_MODEL]",
            "The folder of a run or a checkpoint, or a model: a name, a folder, a Hugging Face id.",
        ),
    ] = None,
    env: opt.EnvironmentOption = None,
    param: opt.Parameters = None,
    max_steps: opt.MaxSteps = None,
    reward: opt.RewardOption = None,
    dataset: opt.DatasetOption = None,
    tool: opt.ToolOption = None,
    parser: opt.ParserOption = None,
    system_prompt: opt.SystemPromptOption = None,
    model: opt.ModelOption = None,
    part: opt.PartOption = None,
    split: Annotated[
        SplitName | None,
        typer.Option(
            help="Play the rows that the run was trained on, or its held-out rows.",
            show_default="eval, if there are held-out rows",
        ),
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option(
            metavar="WHO",
            help="In an environment, a player instead of the model: expert, random, or "
            "FILE.PY:NAME, a function (observation) or (observation, state) that returns the "
            "action. Without one, an agent that calls the model: FILE.PY:NAME of (task, llm), or a "
            "command.",
            show_default=False,
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="In an environment, a model behind a URL plays: any OpenAI-compatible server, for "
            "example http://localhost:8000/v1. --model names its model, OPENAI_API_KEY has the "
            "key.",
            show_default=False,
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=1, help="Maximum tokens of one turn.", show_default="the run's own, or 64"
        ),
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Number of tasks to play.")] = 100,
    k: Annotated[
        int | None,
        typer.Option(
            "--k",
            min=1,
            metavar="N",
            help="Sample N attempts per task, and report pass@1 to pass@N and mean@N.",
            show_default=False,
        ),
    ] = None,
    greedy: Annotated[
        bool | None,
        typer.Option(
            "--greedy/--sampled",
            help="Greedy decoding, or sampling as in training.",
            show_default="greedy",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Seed of the held-out episodes.", show_default="the run's own"),
    ] = None,
    checkpoint: opt.CheckpointOption = "last",
    trust_remote_code: opt.TrustRemoteCode = False,
    as_json: opt.AsJson = False,
    show: Annotated[
        int, typer.Option(min=0, metavar="N", help="Print the first N conversations.")
    ] = 0,
) -> None:
    """Evaluate a trained model on held-out episodes, compared with the expert and a random player.

    A run is played with its own environment, tools, parser, system prompt, dataset and reward.
    All players play the same episodes. Ranges are 95 % confidence intervals; if there are fewer
    rows than episodes, each row is played equally often and the intervals are over rows. Of a mix,
    each environment plays that many episodes and has its own scores.

    [bold]Examples[/bold]

    turnwise eval runs/guess-number
    turnwise eval runs/guess-number --checkpoint best --sampled --episodes 500
    turnwise eval runs/mine --k 8 --episodes 50
    turnwise eval runs/mine --split train
    turnwise eval runs/mine --show 3
    turnwise eval runs/mix --part maze
    turnwise eval runs/mine --agent my_agent.py:act
    turnwise eval smollm2-135m --env grid-world --param size=4
    turnwise eval --agent expert --env my_env.py:MyEnv
    turnwise eval smollm2-135m --agent my_agent.py:solve --dataset tasks.jsonl
    turnwise eval runs/mine --url http://localhost:8000/v1
    turnwise eval --url https://api.openai.com/v1 --model gpt-4.1-mini --env guess-number
    turnwise eval runs/mine --json | jq .model.success
    """
    from turnwise.user_code import settings_from

    source = source_of(run_or_model, checkpoint)
    caller = agent if _calls_the_model(agent, source, env) else None
    agent = agent if caller is None else None
    served = None
    if url is not None:
        served = _served_model(url, model, agent or caller)
        agent, model = served.name, "tiny"  # whose chat template has tools as text
    is_greedy = k is None if greedy is None else greedy
    _check_attempts(k, is_greedy, agent)
    supplied = Supplied(
        env, param, max_steps, reward, dataset, tool, parser, system_prompt, model, part, caller
    )
    supplied.allow_code(agent if served is None else None)
    if caller is None or run_or_model is None:
        _check_names(run_or_model, source, env, caller or agent)
    if split is not None and dataset:
        raise ConfigError(
            f"--split {split} chooses among the rows of the run, and --dataset names other rows. "
            "Leave out one of them."
        )
    with settings_from(source, is_trusted=trust_remote_code):
        with working(f"loading {run_or_model or agent}"):
            from turnwise.cli.eval_episodes import Plan
            from turnwise.cli.eval_report import report, report_mix, reported_headline

            plan = Plan(episodes, k, is_greedy, agent, served)
            player, config = _loaded(
                run_or_model, source, checkpoint, supplied, agent, trust_remote_code
            )
        if max_tokens is not None:
            config.inference.max_tokens, config.limits.max_tokens_per_turn = max_tokens, None
        if seed is not None:
            config.training.seed = seed
        chosen, parts = _play_parts(player, config, split, plan)
    from turnwise.trainer.failures import cut_below_own_limit, described

    for name, played in parts.items():
        first = played[plan.who]
        if (note := cut_below_own_limit(first)) is not None:
            say(note, err=True)
        if all(result.status.is_error for result in first):
            where = f" of {name}" if name else ""
            why = legible(described(first[0]))
            raise ConfigError(f"every episode{where} failed, the first one with: {why}")
    facts: dict[str, Any] = {
        "name": run_or_model,
        "environment": config.environment_name,
        "sampling": "greedy" if is_greedy else "sampled",
        "seed": config.training.seed,
        "evaluated_on": {name: rows.words for name, rows in chosen.items()}
        if config.environments
        else chosen[""].words,
        "split": split,
        "checkpoint": _which_checkpoint(source, checkpoint),
        "in_training": reported_headline(source),
        **({} if agent is None else {"played_by": agent}),
    }
    if config.environments is None:
        report(facts, parts[""], chosen[""], plan, as_json, show)
    else:
        weights = {name: item.weight for name, item in zip(parts, config.environments, strict=True)}
        report_mix(facts, parts, chosen, weights, plan, as_json, show)
    if not as_json and facts["in_training"] is not None:
        text = f"reported by the run itself: {legible(facts['in_training']['text'])}"
        make_console().print(text, soft_wrap=True)


def _calls_the_model(agent: str | None, source: Path | None, environment: str | None) -> bool:
    """Return whether `--agent` is an agent that calls the model: there is no environment."""
    from turnwise.cli.agents import SCRIPTED

    if agent is None or agent in SCRIPTED or environment is not None:
        return False
    return source is None or settings_of(source).agent is not None


def _served_model(url: str, model: str | None, agent: str | None) -> ServedModel:
    """Return the model behind a URL, which plays in the place of the run's own."""
    from turnwise.cli.agents import ServedModel

    if agent is not None:
        raise ConfigError(f"got --url and --agent {agent}, and one of them plays. Leave out one.")
    return ServedModel(url, model)


def _check_attempts(k: int | None, is_greedy: bool, agent: str | None) -> None:
    if k is None:
        return
    if is_greedy and agent is None:
        raise ConfigError(
            "--k with --greedy: greedy attempts at a task are identical, so that pass@k would be "
            "the greedy success at every k. Leave out --greedy, or leave out --k."
        )
    if agent == "expert":
        raise ConfigError(
            f"--k with --agent {agent}: its attempts at a task are identical. Leave out --k."
        )


def _check_names(
    name: str | None, source: Path | None, environment: str | None, agent: str | None
) -> None:
    """Raise `ConfigError` unless the arguments say who plays what."""
    from turnwise.cli.run_paths import not_a_run, runs_in

    if name is None and agent is None:
        raise ConfigError(
            "no player is named. Name a run or a model (turnwise eval runs/mine), or an "
            "agent: turnwise eval --agent expert --env guess-number"
        )
    if source is not None or (name is None and environment is not None):
        return
    is_folder_of_runs = name is not None and bool(runs_in(Path(name).expanduser()))
    if name is not None and environment is None and (agent is not None or is_folder_of_runs):
        raise not_a_run(name)
    if environment is None:
        if name is not None:
            raise ConfigError(
                f"{not_a_run(name)}. A model plays in an environment that you name: "
                "--env guess-number"
            )
        raise ConfigError(
            f"--agent {agent} does not say what to play. Name an environment: --env guess-number"
        )
    if agent is not None:
        raise ConfigError(
            f"got the model {name} and --agent {agent}, and one of them plays. Leave out one; a "
            "run's folder can be named with --agent, for its environment."
        )


def _loaded(
    name: str | None,
    source: Path | None,
    checkpoint: str,
    supplied: Supplied,
    agent: str | None,
    trust_remote_code: bool,
) -> tuple[LoadedModel, ConfigStore]:
    """Return the player (for an agent, only a tokenizer) and the settings of the episodes."""
    from turnwise.config import ConfigStore
    from turnwise.trainer.state import find_checkpoint

    config = ConfigStore()
    if source is not None and agent is None:
        config = settings_of(find_checkpoint(source, which_checkpoint(checkpoint)).path)
    elif source is not None:
        config = settings_of(source)
    restore(config, source, supplied, takes_mix=True)  # what is wrong here needs no model
    if agent is None:
        assert name is not None
        player, trained = load_player(
            name, source, checkpoint, config, supplied.model, trust_remote_code
        )
        config.model, config.inference = trained.model, trained.inference
    else:
        from turnwise.models import LoadedModel
        from turnwise.trainer.state import load_configured_tokenizer, use_model

        if supplied.model is not None:
            use_model(config, supplied.model)
        player = LoadedModel(None, load_configured_tokenizer(config))
    return player, config


def _play_parts(
    player: LoadedModel, config: ConfigStore, split: SplitName | None, plan: Plan
) -> tuple[dict[str, EvalRows], dict[str, Mapping[str, Sequence[EpisodeResult]]]]:
    """Return the rows and the episodes by environment of a mix; without a mix its name is ""."""
    from turnwise.cli.eval_episodes import rows_of_split
    from turnwise.trainer.components import UserComponents

    parts = {name: UserComponents().filled_from(own) for name, own in config.parts().items()}
    chosen = {name: rows_of_split(part, split, name) for name, part in parts.items()}
    played = {
        name: _played(player, own, parts[name], chosen[name], plan)
        for name, own in config.parts().items()
    }
    return chosen, played


def _played(
    player: LoadedModel, config: ConfigStore, parts: UserComponents, chosen: EvalRows, plan: Plan
) -> Mapping[str, Sequence[EpisodeResult]]:
    from rich.status import Status

    from turnwise.cli.eval_episodes import play_held_out
    from turnwise.trainer.rollout import Interrupted
    from turnwise.trainer.stopping import StopRequest

    console = make_console(stderr=True)
    status = Status("", console=console)
    stop = StopRequest(lambda text: None)

    def progress(who: str, done: int, total: int) -> None:
        status.update(f"{who}: {done:,} of {total:,} episodes")

    try:
        with status, stop.listening(config.inference.stall_timeout):
            played = play_held_out(player, config, parts, chosen, plan, stop, progress)
        if stop.is_requested:
            raise Interrupted
    except (Interrupted, KeyboardInterrupt):
        console.print("interrupted")
        raise typer.Exit(INTERRUPTED) from None
    return played


def _which_checkpoint(source: Path | None, checkpoint: str) -> str | None:
    """Return which checkpoint is `best` and by which metric; None for another `--checkpoint`."""
    from turnwise.runs.checkpoints import CheckpointStore
    from turnwise.runs.run_folder import RunFolder

    if source is None or checkpoint != "best":
        return None
    best = CheckpointStore(RunFolder(source).checkpoints).best
    if best is None:
        return "the last step: no evaluation has marked a best one (training.eval_episodes)"
    return str(best)
