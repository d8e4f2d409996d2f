"""`turnwise eval`: evaluates a trained model on held-out episodes."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnwise.cli import options as opt
from turnwise.cli.common import legible, make_console, print_json, say, working
from turnwise.cli.run_paths import find_source, not_a_run, run_containing, which_checkpoint
from turnwise.cli.settings import Overrides, open_settings, read_settings
from turnwise.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from turnwise.cli.eval_episodes import Part, Plan
    from turnwise.episode import EpisodeResult
    from turnwise.models import LoadedModel

INTERRUPTED = 130


class SplitName(StrEnum):
    train = "train"
    eval = "eval"


def evaluate(
    ctx: typer.Context,
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
            min=1,
            help="Maximum tokens of one turn.",
            show_default="the run's own, or 64; with --url the server's",
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
    from turnwise.runs.checkpoints import CheckpointStore
    from turnwise.runs.headline import headline
    from turnwise.runs.run_folder import RunFolder
    from turnwise.user_code import settings_from

    source = find_source(run_or_model, checkpoint)
    caller = served = None
    is_function = agent not in (None, "expert", "random")
    has_environment = env is not None or (
        is_function and source is not None and read_settings(source).agent is None
    )
    if is_function and not has_environment:  # it is an agent that calls the model
        caller, agent = agent, None
    if url is not None:
        from turnwise.cli.agents import ServedModel

        if agent or caller:
            raise ConfigError(
                f"got --url and --agent {agent or caller}, and one of them plays. Leave out one."
            )
        served = ServedModel(
            url, model, sends_temperature=greedy is not None, max_tokens=max_tokens
        )
        agent, model = served.name, "tiny"  # whose chat template has tools as text
    is_greedy = k is None if greedy is None else greedy
    if caller is None or run_or_model is None:
        _check_players(run_or_model, source, env, caller or agent)
    if k is not None and (agent == "expert" or (agent is None and is_greedy)):
        raise ConfigError(
            f"--k with {'--agent expert' if agent else '--greedy'}: {agent or 'greedy'} attempts "
            "at a task are identical, so that pass@k would be the success at every k. Leave out "
            "one of them."
        )
    if split is not None and dataset:
        raise ConfigError(
            f"--split {split} chooses among the rows of the run, and --dataset names other rows. "
            "Leave out one of them."
        )
    overrides = Overrides.typed(ctx.params, model=model, agent=caller)
    overrides.allow_code(agent if served is None else None)
    with settings_from(source, is_trusted=trust_remote_code):
        with working(f"loading {run_or_model or agent}"):
            from turnwise.cli.agents import load_player
            from turnwise.cli.eval_episodes import Plan, make_part
            from turnwise.trainer.state import find_checkpoint

            settings = source
            if source is not None and agent is None:
                settings = find_checkpoint(source, which_checkpoint(checkpoint)).path
            config = open_settings(settings, overrides, takes_mix=True)
            name = run_or_model if agent is None else None
            player = load_player(name, source, checkpoint, config, model, trust_remote_code)
        if max_tokens is not None:
            config.inference.max_tokens, config.limits.max_tokens_per_turn = max_tokens, None
        if seed is not None:
            config.training.seed = seed
        plan = Plan(episodes, k, is_greedy, agent, served)
        parts = {
            name: make_part(settings, split, name, plan)
            for name, settings in config.parts().items()
        }
        for name, each in parts.items():
            _play(each, player, plan, name)
    facts: dict[str, Any] = {
        "name": run_or_model,
        "environment": config.environment_name,
        "sampling": "greedy" if is_greedy else "sampled",
        "seed": config.training.seed,
        "evaluated_on": {name: each.evaluated_on for name, each in parts.items()}
        if config.environments
        else parts[""].evaluated_on,
        "split": split,
        "checkpoint": None,
        "in_training": None,
    }
    if source is not None:
        folder = RunFolder(run_containing(source))
        if checkpoint == "best":
            best = CheckpointStore(folder.checkpoints).best
            facts["checkpoint"] = str(best or "the last step: no evaluation has marked a best one")
        with contextlib.suppress(ConfigError):  # the file of metrics may be damaged
            if (main := headline(folder.read_metrics(), folder.evaluated_on)) is not None:
                facts["in_training"] = main.to_dict()
    if served is not None and greedy is None:
        facts["sampling"] = "the server's own"
    if agent is not None:
        facts["played_by"] = agent
    weights = [item.weight for item in config.environments or ()]
    _report(facts, parts, dict(zip(parts, weights, strict=False)), plan, as_json, show)


def _check_players(
    name: str | None, source: Path | None, env: str | None, agent: str | None
) -> None:
    """Raise `ConfigError` unless the arguments say who plays what."""
    if name is None and agent is None:
        raise ConfigError(
            "no player is named. Name a run or a model (turnwise eval runs/mine), or an "
            "agent: turnwise eval --agent expert --env guess-number"
        )
    if source is None and env is None:
        what = f"--agent {agent} does not say what to play" if name is None else not_a_run(name)
        raise ConfigError(
            f"{what}. A model plays in an environment that you name: --env guess-number"
        )
    if source is None and name is not None and agent is not None:
        raise ConfigError(
            f"got the model {name} and --agent {agent}, and one of them plays. Leave out one; a "
            "run's folder can be named with --agent, for its environment."
        )


def _play(part: Part, player: LoadedModel, plan: Plan, name: str) -> None:
    """Play the episodes of an environment; `name` is that of one of a mix."""
    from rich.status import Status

    from turnwise.cli.eval_episodes import play_part
    from turnwise.trainer.episode_metrics import cut_below_own_limit, describe_failure
    from turnwise.trainer.stopping import Interrupted, StopRequest

    console = make_console(stderr=True)
    status = Status("", console=console)
    stop = StopRequest(lambda text: None)

    def progress(who: str, done: int, total: int) -> None:
        status.update(f"{who}: {done:,} of {total:,} episodes")

    try:
        with status, stop.listening(part.config.inference.stall_timeout):
            play_part(part, player, plan, stop, progress)
        if stop.is_requested:
            raise Interrupted
    except (Interrupted, KeyboardInterrupt):
        console.print("interrupted")
        raise typer.Exit(INTERRUPTED) from None
    results = part.played[plan.who]
    if (note := cut_below_own_limit(results)) is not None:
        say(note, err=True)
    if all(result.status.is_error for result in results):
        where = f" of {name}" if name else ""
        why = legible(describe_failure(results[0]))
        raise ConfigError(f"every episode{where} failed, the first one with: {why}")


def _report(
    facts: Mapping[str, Any],
    parts: Mapping[str, Part],
    weights: Mapping[str, float],
    plan: Plan,
    as_json: bool,
    show: int,
) -> None:
    """Print the scores of each environment; of a mix, also the mean over them by their weights."""
    from turnwise.cli.scores import attempt_scores, player_scores
    from turnwise.trainer.episode_metrics import weighted_mean

    scored: dict[str, dict[str, Any]] = {}
    for name, part in parts.items():
        reports = any(
            agent.trajectory.reports_success
            for results in part.played.values()
            for result in results
            for agent in result.agents
        )
        scored[name] = {
            who: scores
            for who, results in part.played.items()
            if (scores := player_scores(results, reports, facts["seed"])) is not None
        }
        if plan.k is not None:
            results = part.played[plan.who]
            attempts = attempt_scores(results, plan.k, facts["seed"], reports)
            if attempts is not None:
                scored[name]["attempts"] = attempts
    means = {
        name: {
            kind: scores[plan.who][kind]
            for kind in ("success", "reward")
            if scores[plan.who][kind] is not None
        }
        for name, scores in scored.items()
    }
    mean = weighted_mean(means, weights) if weights else {}
    if as_json:
        if not weights:
            print_json({**facts, **scored[""]})
            return
        each = {name: {"weight": weights[name], **scored[name]} for name in parts}
        print_json({**facts, "parts": each, "mean_by_weight": mean})
        return
    console = make_console()
    for name, part in parts.items():
        for result in part.played[plan.who][:show]:
            _show_conversation(console, result)
        console.print(_title({**facts, "environment": name or facts["environment"]}, part, plan))
        _show_scores(console, scored[name], plan)
        if weights:
            console.print()
    if weights:
        words = ", ".join(f"{legible(name)} {weight:g}" for name, weight in weights.items())
        values = ", ".join(f"{kind} {value:.4g}" for kind, value in mean.items())
        console.print(f"mean over the environments by weight ({words}): {values}")
    if facts["in_training"] is not None:
        text = f"reported by the run itself: {legible(facts['in_training']['text'])}"
        console.print(text, soft_wrap=True)


def _title(facts: Mapping[str, Any], part: Part, plan: Plan) -> str:
    who = legible(str(facts["name"] or plan.agent))
    if facts["name"] and plan.agent:
        who = f"{legible(plan.agent)} in the environment of {who}"
    number, num_rows = part.num_tasks, len(part.rows or ())
    kind = "episodes" if plan.k is None else "tasks"
    many = (
        f"{number:,} {kind} on {part.evaluated_on}" if num_rows else f"{number:,} held-out {kind}"
    )
    if plan.k is not None:
        many += f", {plan.k} attempts each"
    elif num_rows and number >= num_rows:
        times = number // num_rows
        many += f", each {times:,} times (intervals are over rows)" if times > 1 else ", each once"
    how = "" if plan.agent is not None else f", {facts['sampling']}"
    best = f"checkpoint of {facts['checkpoint']}\n" if facts["checkpoint"] else ""
    return f"{best}{who} on {legible(facts['environment'])}, {many}{how}"


def _show_conversation(console: Console, result: EpisodeResult) -> None:
    """Print all messages of an episode, and how it ended."""
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


def _show_scores(console: Console, scores: Mapping[str, Any], plan: Plan) -> None:
    """Print a table of all players; if there were several attempts, one of pass@k first."""
    from rich.table import Table

    def show(rows: Sequence[Sequence[str]]) -> None:
        table = Table.grid(padding=(0, 3))
        table.add_column(style="bold")
        for _ in rows[0][1:]:
            table.add_column(justify="right", no_wrap=True)
        for cells in rows:
            table.add_row(*cells, style=None if cells[0] else "dim")
        console.print(table)

    def interval(estimate: Mapping[str, float], form: str = ".3f") -> str:
        return f"{estimate['value']:{form}} ({estimate['low']:{form}} to {estimate['high']:{form}})"

    first = legible(plan.agent or "model")
    players = dict(scores)
    rows: list[Sequence[str]] = []
    if (attempts := players.pop("attempts", None)) is not None:
        del players[plan.who]
        estimates = {f"pass@{k}": value for k, value in (attempts["pass_at_k"] or {}).items()}
        if attempts["mean_at_k"] is not None:
            estimates[f"mean@{plan.k}"] = attempts["mean_at_k"]
        rows = [(f"{first} {name}", interval(value)) for name, value in estimates.items()]
        show([*rows, (f"{first} reward", interval(attempts["reward"], ".4g"))])
        if attempts["reason"] is not None:
            console.print(attempts["reason"], style="yellow")
        num_short = sum(task["attempts"] < attempts["k"] for task in attempts["tasks"])
        if num_short:
            console.print(
                f"{num_short:,} of {len(attempts['tasks']):,} tasks had attempts that failed with "
                f"an error, which are not counted; pass@{plan.k} leaves these tasks out"
            )
    columns = ["reward", "std", "turns", "truncated"]
    if any(values["success"] is not None for values in players.values()):
        columns.insert(0, "success")
    if any(values["errors"] for values in players.values()):
        columns.append("errors")
    rows = [("", *columns)]
    for who, values in players.items():
        rate = {"value": values["success"] or 0, "low": values["success_low"] or 0}
        cells = {
            "success": interval({**rate, "high": values["success_high"] or 0}),
            "reward": f"{values['reward']:.4g} ± {values['reward_margin']:.2g}",
            "std": f"{values['reward_std']:.3g}",
            "turns": f"{values['turns']:.2f}",
            "truncated": f"{values['truncated']:.1%}",
            "errors": f"{values['errors']:.1%}",
        }
        rows.append((first if who == plan.who else who, *(cells[name] for name in columns)))
    show(rows)
