"""`turnwise eval`: evaluates a trained model on held-out episodes."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from turnwise.cli import options as opt
from turnwise.cli.common import make_console, print_json, working
from turnwise.cli.run_paths import find_source, not_a_run
from turnwise.cli.settings import Overrides, open_settings, read_settings
from turnwise.errors import ConfigError
from turnwise.runs.checkpoints import CheckpointStore
from turnwise.runs.headline import headline
from turnwise.runs.run_folder import RunFolder, run_containing
from turnwise.user_code import settings_from

if TYPE_CHECKING:
    from turnwise.cli.eval_episodes import Part, Plan
    from turnwise.episode import EpisodeResult

SplitName = StrEnum("SplitName", ["train", "eval"])


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
        opt.option(
            "Rows that the run was trained on, or held-out ones.",
            default="eval; train if there are none",
        ),
    ] = None,
    agent: Annotated[
        str | None,
        opt.option(
            "In an environment, a player instead of the model: expert, random, or FILE.PY:NAME of "
            "(observation) or (observation, state), which returns the action. Without one, an "
            "agent that calls the model: FILE.PY:NAME of (task, llm), or a command.",
            "WHO",
        ),
    ] = None,
    url: Annotated[
        str | None,
        opt.option(
            "In an environment, a model of an OpenAI-compatible server plays: http://host:80/v1. "
            "--model names its model, OPENAI_API_KEY has the key.",
            "URL",
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        opt.option(
            "Maximum tokens of one turn.", default="the run's or the server's own, or 64", min=1
        ),
    ] = None,
    episodes: Annotated[int, opt.option("Number of tasks to play.", min=1)] = 100,
    k: Annotated[
        int | None,
        opt.option("Sample N attempts per task, report pass@1 to pass@N and mean@N.", "N", min=1),
    ] = None,
    greedy: opt.GreedyOption = None,
    seed: Annotated[
        int | None, opt.option("Seed of the held-out episodes.", default="the run's own", min=0)
    ] = None,
    checkpoint: opt.CheckpointOption = "last",
    trust_remote_code: opt.TrustRemoteCode = False,
    as_json: opt.AsJson = False,
    show: Annotated[int, opt.option("Print the first N conversations.", "N", min=0)] = 0,
) -> None:
    """Evaluate a trained model on held-out episodes, compared with the expert and a random player.

    A run is played with its own environment, tools, parser, system prompt, dataset and reward.
    All players play the same episodes. Ranges are 95 % confidence intervals; if there are fewer
    rows than episodes, each row is played equally often and the intervals are over rows. Of a mix,
    each environment plays that many episodes and has its own scores.

    [bold]Examples[/bold]

    turnwise eval runs/guess-number
    turnwise eval runs/mine --checkpoint best --sampled --episodes 500
    turnwise eval runs/mine --k 8 --episodes 50
    turnwise eval runs/mine --agent my_agent.py:act
    turnwise eval smollm2-135m --env grid-world --param size=4
    turnwise eval smollm2-135m --agent my_agent.py:solve --dataset tasks.jsonl
    turnwise eval --url https://api.openai.com/v1 --model gpt-4.1-mini --env guess-number
    turnwise eval runs/mine --json | jq .model.success
    """
    source = find_source(run_or_model, checkpoint)
    caller = served = None
    is_function = agent not in (None, "expert", "random")
    has_environment = env is not None or (
        is_function and source is not None and read_settings(source).agent is None
    )
    if is_function and not has_environment:  # it is an agent that calls the model
        caller, agent = agent, None
    _check_who_plays(run_or_model, source, env, agent, caller, url)
    is_greedy = k is None if greedy is None else greedy
    if k is not None and (agent == "expert" or (agent is None and url is None and is_greedy)):
        raise ConfigError(
            f"--k needs attempts that differ, and {agent or 'greedy'} attempts at a task are "
            "identical. Leave out one of them."
        )
    if split is not None and dataset:
        raise ConfigError(
            "--split is for the run's rows, --dataset for others. Leave out one of them."
        )
    if url is not None:
        from turnwise.cli.agents import ServedModel

        served = ServedModel(url, model, greedy is not None, max_tokens)
        agent, model = served.name, "tiny"  # whose chat template has tools as text
    overrides = Overrides.typed(ctx.params, model=model, agent=caller)
    overrides.allow_code(agent)
    with settings_from(source, is_trusted=trust_remote_code):
        with working(f"loading {run_or_model or agent}"):
            from turnwise.cli import eval_episodes
            from turnwise.cli.agents import load_players
            from turnwise.trainer.state import find_checkpoint

            if source is not None and agent is None:
                source = find_checkpoint(source).path
            config = open_settings(source, overrides, takes_mix=True)
            name = run_or_model if agent is None else None
            loaded = load_players(
                name, source, config, base_model=model, trust_remote_code=trust_remote_code
            )
        if max_tokens is not None:
            config.inference.max_tokens, config.limits.max_tokens_per_turn = max_tokens, None
        if seed is not None:
            config.training.seed = seed
        plan = eval_episodes.Plan(episodes, k, is_greedy, agent, served, loaded)
        parts = {
            name: eval_episodes.make_part(settings, split, name, plan)
            for name, settings in config.parts().items()
        }
        for name, each in parts.items():
            eval_episodes.play_part(each, plan, name)
    weights = {}
    if config.environments is not None:
        weights = dict(zip(parts, (item.weight for item in config.environments), strict=True))
    scored = {
        name: eval_episodes.score_players(each.played, plan.who, k, config.training.seed)
        for name, each in parts.items()
    }
    mean = _mean_by_weight(scored, weights, plan.who)
    sampling = "greedy" if is_greedy else "sampled"
    evaluated_on = {name: each.evaluated_on for name, each in parts.items()}
    facts: dict[str, Any] = {
        "name": run_or_model,
        "environment": config.environment_name,
        "sampling": "the server's own" if served and greedy is None else sampling,
        "seed": config.training.seed,
        "evaluated_on": evaluated_on if weights else evaluated_on[""],
        "split": split,
        "checkpoint": None,
        "in_training": None,
    }
    if source is not None:
        facts |= _facts_of_run(run_containing(source), checkpoint)
    if agent is not None:
        facts["played_by"] = agent
    if as_json:
        by_part = {name: {"weight": weights.get(name), **scored[name]} for name in parts}
        mixed: dict[str, Any] = {"parts": by_part, "mean_by_weight": mean}
        print_json({**facts, **(mixed if weights else scored[""])})
        return
    console = make_console()
    for name, each in parts.items():
        for result in each.played[plan.who][:show]:
            _show_conversations(console, result)
        console.print(_title(facts, name, each, plan))
        eval_episodes.show_scores(console, scored[name], plan.who, plan.agent or "model")
        if weights:
            console.print()
    if weights:
        words = ", ".join(f"{name} {weight:g}" for name, weight in weights.items())
        values = ", ".join(f"{kind} {value:.4g}" for kind, value in mean.items())
        console.print(f"mean over the environments by weight ({words}): {values}")
    if (main := facts["in_training"]) is not None:
        console.print(f"reported by the run itself: {main['text']}", soft_wrap=True)


def _check_who_plays(
    run_or_model: str | None,
    source: Path | None,
    env: str | None,
    agent: str | None,
    caller: str | None,
    url: str | None,
) -> None:
    """Raise unless one player is named, and what it plays. A `caller` calls the model."""
    who = caller or agent or url
    if run_or_model is None and who is None:
        raise ConfigError(
            "no player is named. Name a run or a model (turnwise eval runs/mine), or an "
            "agent: turnwise eval --agent expert --env guess-number"
        )
    if source is None and env is None and (caller is None or run_or_model is None):
        what = f"--agent {who} does not say what to play"
        what = str(not_a_run(run_or_model)) if run_or_model else what
        raise ConfigError(
            f"{what}. A model plays in an environment that you name: --env guess-number"
        )
    players = [caller or agent, url, None if source or caller else run_or_model]
    if len(named := [player for player in players if player]) > 1:
        raise ConfigError(
            f"got {' and '.join(named)}, and one of them plays. Leave out the others."
        )


def _facts_of_run(run: Path, checkpoint: str) -> dict[str, Any]:
    """Return which checkpoint of a run is evaluated, and what the run itself reported."""
    folder, facts = RunFolder(run), dict[str, Any]()
    if checkpoint == "best":
        best = CheckpointStore(folder.checkpoints).best
        facts["checkpoint"] = str(best or "the last step: no evaluation has marked a best one")
    with contextlib.suppress(ConfigError):  # the file of metrics may be damaged
        if (trained := headline(folder.read_metrics(), folder.evaluated_on)) is not None:
            facts["in_training"] = trained.to_dict()
    return facts


def _mean_by_weight(
    scored: Mapping[str, Mapping[str, Any]], weights: Mapping[str, float], who: str
) -> dict[str, float]:
    """Return the success and the reward of a player over the environments of a mix."""
    from turnwise.trainer.episode_metrics import weighted_mean

    kinds = ("success", "reward")
    means = {
        name: {kind: value for kind in kinds if (value := scores[who][kind]) is not None}
        for name, scores in scored.items()
    }
    return weighted_mean(means, weights) if weights else {}


def _show_conversations(console: Console, result: EpisodeResult) -> None:
    for agent in result.agents:
        name = f", {agent.name}" if len(result.agents) > 1 else ""
        console.print(Text(f"seed {result.seed}{name}", "bold"))
        for message in agent.messages:
            style = "bold cyan" if message["role"] == "assistant" else "dim"
            text = str(message.get("content") or "").strip("\n")
            console.print(Text.assemble((f"{message['role']}: ", style), text))
        reward = "none" if agent.reward is None else f"{agent.reward.total:.4g}"
        ending = result.error or result.status.value.replace("_", " ")
        console.print(Text(f"reward {reward}, {ending}\n", "dim"))


def _title(facts: Mapping[str, Any], name: str, part: Part, plan: Plan) -> str:
    who = str(facts["name"] or plan.agent)
    if facts["name"] and plan.agent:
        who = f"{plan.agent} in the environment of {who}"
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
    sampling = "" if plan.agent is not None else f", {facts['sampling']}"
    best = f"checkpoint of {facts['checkpoint']}\n" if facts["checkpoint"] else ""
    return f"{best}{who} on {name or facts['environment']}, {many}{sampling}"
