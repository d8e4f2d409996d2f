"""`turnwise eval`: how good a trained model is, on episodes that training never saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnwise.cli import completion
from turnwise.cli.common import (
    AsJson,
    MaxSteps,
    Parameters,
    TrustRemoteCode,
    legible,
    make_console,
    print_json,
    working,
)
from turnwise.cli.eval_rows import EvalRows, SplitName, rows_of_split
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
    from turnwise.cli.held_out import Plan
    from turnwise.cli.pass_at_k import AttemptScores
    from turnwise.cli.scores import Scores
    from turnwise.config import ConfigStore
    from turnwise.episode import EpisodeResult
    from turnwise.models import LoadedModel
    from turnwise.trainer.components import UserComponents

INTERRUPTED = 130


def evaluate(
    run_or_model: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN_OR_MODEL",
            help="A run's folder, a checkpoint, or a model: a name, a folder, a Hugging Face id.",
            show_default=False,
            autocompletion=completion.runs_and_models,
        ),
    ] = None,
    env: EnvironmentOption = None,
    param: Parameters = None,
    max_steps: MaxSteps = None,
    reward: RewardOption = None,
    dataset: DatasetOption = None,
    tool: ToolOption = None,
    parser: ParserOption = None,
    system_prompt: SystemPromptOption = None,
    model: ModelOption = None,
    part: PartOption = None,
    split: Annotated[
        SplitName | None,
        typer.Option(
            help="Which rows of the run's dataset to play: those that it was trained on, or those "
            "that were held out.",
            show_default="held-out rows where there are any",
        ),
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option(
            metavar="WHO",
            help="Who plays instead of the model: expert, random, or FILE.PY:NAME, a function "
            "from the observation (and the state, if it takes two arguments) to the action.",
            show_default=False,
        ),
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="How many tasks to play.")] = 100,
    k: Annotated[
        int | None,
        typer.Option(
            "--k",
            min=1,
            metavar="N",
            help="Attempts at each task, sampled: pass@1 to pass@N, and mean@N.",
            show_default=False,
        ),
    ] = None,
    greedy: Annotated[
        bool | None,
        typer.Option(
            "--greedy/--sampled",
            help="Take the likeliest token, or draw one.",
            show_default="greedy",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Other held-out episodes.", show_default="the run's own"),
    ] = None,
    checkpoint: CheckpointOption = "last",
    trust_remote_code: TrustRemoteCode = False,
    as_json: AsJson = False,
    show: Annotated[
        int, typer.Option(min=0, metavar="N", help="Print so many whole conversations.")
    ] = 0,
) -> None:
    """Evaluate a trained model on held-out episodes, next to the expert and the random player.

    A run is played with its own environment, tools, parser, system prompt, dataset and reward.
    The same seed means the same episodes for each player. Ranges are 95 % intervals; where there
    are fewer rows than episodes, each row is played equally often, and the intervals are over
    rows. Of a mix of environments each part plays so many episodes, and has its own scores.

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
    turnwise eval runs/mine --json | jq .model.success
    """
    from turnwise.cli.eval_report import reported_headline
    from turnwise.cli.held_out import Plan
    from turnwise.cli.run_parts import source_of
    from turnwise.user_code import settings_from

    is_greedy = k is None if greedy is None else greedy
    _check_attempts(k, is_greedy, agent)
    supplied = Supplied(
        env, param, max_steps, reward, dataset, tool, parser, system_prompt, model, part
    )
    supplied.allow_code(agent)
    source = source_of(run_or_model, checkpoint)
    _check_names(run_or_model, source, env, agent)
    if split is not None and dataset:
        raise ConfigError(
            f"--split {split} chooses among the rows of the run, and --dataset names other rows. "
            "Leave out one of them."
        )
    plan = Plan(episodes, k, is_greedy, agent)
    with settings_from(source, is_trusted=trust_remote_code):
        with working(f"loading {run_or_model or agent}"):
            player, config = _loaded(
                run_or_model, source, checkpoint, supplied, agent, trust_remote_code
            )
        if seed is not None:
            config.training.seed = seed
        chosen, parts = _play_parts(player, config, split, plan)
    for name, played in parts.items():
        first = played[plan.who]
        if all(result.status.is_error for result in first):
            where = f" of {name}" if name else ""
            raise ConfigError(
                f"every episode{where} failed, the first one with: {legible(str(first[0].error))}"
            )
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
        _report(facts, parts[""], chosen[""], plan, as_json, show)
    else:
        weights = {name: item.weight for name, item in zip(parts, config.environments, strict=True)}
        _report_mix(facts, parts, chosen, weights, plan, as_json, show)
    if not as_json and facts["in_training"] is not None:
        text = f"reported by the run itself: {legible(facts['in_training']['text'])}"
        make_console().print(text, soft_wrap=True)


def _check_attempts(k: int | None, is_greedy: bool, agent: str | None) -> None:
    from turnwise.cli.agents import is_repeatable

    if k is None:
        return
    if is_greedy and agent is None:
        raise ConfigError(
            "--k with --greedy: greedy attempts at a task are identical, so that pass@k would be "
            "the greedy success at every k. Leave out --greedy, or leave out --k."
        )
    if agent is not None and is_repeatable(agent):
        raise ConfigError(
            f"--k with --agent {agent}: its attempts at a task are identical. Leave out --k."
        )


def _check_names(
    name: str | None, source: Path | None, environment: str | None, agent: str | None
) -> None:
    """Refuse what does not say who plays what."""
    from turnwise.cli.run_place import not_a_run, runs_in

    if name is None and agent is None:
        raise ConfigError(
            "nobody is named who plays. Name a run or a model (turnwise eval runs/mine), or an "
            "agent: turnwise eval --agent expert --env guess-number"
        )
    if source is not None or (name is None and environment is not None):
        return
    is_folder_of_runs = name is not None and bool(runs_in(Path(name).expanduser()))
    if name is not None and environment is None and (agent is not None or is_folder_of_runs):
        raise not_a_run(name)
    if environment is None:
        who = f"{name} is not a run, so it" if name is not None else f"--agent {agent}"
        raise ConfigError(
            f"{who} does not say what to play. Name an environment: --env guess-number"
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
    """Who plays, and the settings under which it plays."""
    from turnwise.cli.run_parts import load_with_settings, restore, settings_of
    from turnwise.config import ConfigStore

    if agent is None:
        assert name is not None
        player, config = load_with_settings(name, source, checkpoint, supplied, trust_remote_code)
    else:
        from turnwise.models import LoadedModel
        from turnwise.trainer.state import load_configured_tokenizer, use_model

        config = ConfigStore() if source is None else settings_of(source)
        if supplied.model is not None:
            use_model(config, supplied.model)
        player = LoadedModel(None, load_configured_tokenizer(config))
    restore(config, source, supplied, takes_mix=True)
    return player, config


def _play_parts(
    player: LoadedModel, config: ConfigStore, split: SplitName | None, plan: Plan
) -> tuple[dict[str, EvalRows], dict[str, Mapping[str, Sequence[EpisodeResult]]]]:
    """The rows of each environment of a mix, or of the only one, and what was played of them."""
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
            played = play_held_out(player, config, parts, chosen, plan, stop, tell)
        if stop.is_wanted:
            raise Interrupted
    except (Interrupted, KeyboardInterrupt):
        console.print("interrupted")
        raise typer.Exit(INTERRUPTED) from None
    return played


def _report(
    facts: Mapping[str, Any],
    played: Mapping[str, Sequence[EpisodeResult]],
    chosen: EvalRows,
    plan: Plan,
    as_json: bool,
    show: int,
) -> None:
    from turnwise.cli.eval_report import show_attempts, show_conversation, show_scores

    scores, attempts = _scored(played, plan, facts["seed"])
    if as_json:
        print_json({**facts, **_as_dict(scores, attempts)})
        return
    console = make_console()
    for result in played[plan.who][:show]:
        show_conversation(console, result)
    console.print(_headline(facts, chosen, plan))
    name = plan.agent or "model"
    if attempts is not None:
        show_attempts(console, name, attempts)
        scores.pop(plan.who)
    show_scores(console, {name if who == plan.who else who: s for who, s in scores.items()})


def _report_mix(
    facts: Mapping[str, Any],
    parts: Mapping[str, Mapping[str, Sequence[EpisodeResult]]],
    chosen: Mapping[str, EvalRows],
    weights: Mapping[str, float],
    plan: Plan,
    as_json: bool,
    show: int,
) -> None:
    """Each part by itself, and the mean over them, each counted with its weight in the mix."""
    from turnwise.trainer.episode_metrics import weighted_mean

    scored = {name: _scored(played, plan, facts["seed"]) for name, played in parts.items()}
    firsts = {name: scores[plan.who] for name, (scores, _) in scored.items()}
    kinds = ("success", "reward")
    known = {
        name: {kind: value for kind in kinds if (value := getattr(first, kind)) is not None}
        for name, first in firsts.items()
    }
    mean = weighted_mean(known, weights)
    if as_json:
        each = {name: {"weight": weights[name], **_as_dict(*scored[name])} for name in parts}
        print_json({**facts, "parts": each, "mean_by_weight": mean})
        return
    for name, played in parts.items():
        _report({**facts, "environment": name}, played, chosen[name], plan, False, show)
        typer.echo()
    console = make_console()
    words = ", ".join(f"{legible(name)} {weight:g}" for name, weight in weights.items())
    found = ", ".join(f"{kind} {value:.4g}" for kind, value in mean.items())
    console.print(f"mean over the parts by weight ({words}): {found}")


def _scored(
    played: Mapping[str, Sequence[EpisodeResult]], plan: Plan, seed: int
) -> tuple[dict[str, Scores | None], AttemptScores | None]:
    from turnwise.cli.pass_at_k import AttemptScores
    from turnwise.cli.scores import Scores, tells_success

    tells = any(tells_success(results) for results in played.values())
    scores = {who: Scores.of(results, tells, seed) for who, results in played.items()}
    if plan.k is None:
        return scores, None
    return scores, AttemptScores.of(played[plan.who], plan.num_attempts, seed, tells)


def _as_dict(scores: Mapping[str, Scores | None], attempts: AttemptScores | None) -> dict[str, Any]:
    found: dict[str, Any] = {who: score.to_dict() for who, score in scores.items() if score}
    return found if attempts is None else {**found, "attempts": attempts.to_dict()}


def _headline(facts: Mapping[str, Any], chosen: EvalRows, plan: Plan) -> str:
    who = legible(str(facts["name"] or plan.agent))
    if facts["name"] and plan.agent:
        who = f"{legible(plan.agent)} in the environment of {who}"
    how = "" if plan.agent is not None else f", {facts['sampling']}"
    number = plan.num_episodes(chosen)
    if plan.k is not None:
        tasks = "held-out tasks" if chosen.is_seeds else f"tasks of {chosen.words}"
        many = f"{number:,} {tasks}, {plan.num_attempts} attempts each"
    elif chosen.is_seeds:
        many = f"{number:,} held-out episodes"
    else:
        many = f"{number:,} episodes on {chosen.words}{chosen.often(number)}"
    best = f"checkpoint of {facts['checkpoint']}\n" if facts["checkpoint"] else ""
    return f"{best}{who} on {legible(facts['environment'])}, {many}{how}"


def _which_checkpoint(source: Path | None, checkpoint: str) -> str | None:
    """Which one `best` is, and by what; None where another one is asked for."""
    from turnwise.runs.checkpoints import CheckpointStore
    from turnwise.runs.run_folder import RunFolder

    if source is None or checkpoint != "best":
        return None
    best = CheckpointStore(RunFolder(source).checkpoints).best
    if best is None:
        return "the last step: no evaluation has marked a best one (training.eval_episodes)"
    return str(best)
