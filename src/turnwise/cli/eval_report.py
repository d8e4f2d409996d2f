"""Prints the results of `turnwise eval`: conversations, and the scores of all players."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from turnwise.cli.common import legible, make_console, print_json
from turnwise.cli.run_paths import run_of
from turnwise.cli.scores import NO_SUCCESS, AttemptScores, Estimate, Scores, reports_success
from turnwise.errors import ConfigError
from turnwise.runs.headline import headline
from turnwise.runs.run_folder import RunFolder

if TYPE_CHECKING:
    from rich.console import Console

    from turnwise.cli.eval_episodes import EvalRows, Plan
    from turnwise.episode import EpisodeResult


def reported_headline(source: Path | None) -> dict[str, Any] | None:
    """Return the headline that the run reported in training; None for a model without a run."""
    if source is None:
        return None
    folder = RunFolder(run_of(source))
    try:
        found = headline(folder.read_metrics(), folder.evaluated_on)
    except ConfigError:  # the model can be evaluated without the file of metrics
        return None
    return None if found is None else found.to_dict()


def report(
    facts: Mapping[str, Any],
    played: Mapping[str, Sequence[EpisodeResult]],
    chosen: EvalRows,
    plan: Plan,
    as_json: bool,
    show: int,
) -> None:
    scores, attempts = _scored(played, plan, facts["seed"])
    if as_json:
        print_json({**facts, **_as_dict(scores, attempts)})
        return
    console = make_console()
    for result in played[plan.who][:show]:
        _show_conversation(console, result)
    console.print(_headline(facts, chosen, plan))
    name = plan.agent or "model"
    if attempts is not None:
        _show_attempts(console, name, attempts)
        scores.pop(plan.who)
    _show_scores(console, {name if who == plan.who else who: s for who, s in scores.items()})


def report_mix(
    facts: Mapping[str, Any],
    parts: Mapping[str, Mapping[str, Sequence[EpisodeResult]]],
    chosen: Mapping[str, EvalRows],
    weights: Mapping[str, float],
    plan: Plan,
    as_json: bool,
    show: int,
) -> None:
    """Report each environment of a mix, and the mean over them by their weights."""
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
        report({**facts, "environment": name}, played, chosen[name], plan, False, show)
        typer.echo()
    console = make_console()
    words = ", ".join(f"{legible(name)} {weight:g}" for name, weight in weights.items())
    found = ", ".join(f"{kind} {value:.4g}" for kind, value in mean.items())
    console.print(f"mean over the environments by weight ({words}): {found}")


def _scored(
    played: Mapping[str, Sequence[EpisodeResult]], plan: Plan, seed: int
) -> tuple[dict[str, Scores | None], AttemptScores | None]:
    reports = any(reports_success(results) for results in played.values())
    scores = {who: Scores.of(results, reports, seed) for who, results in played.items()}
    if plan.k is None:
        return scores, None
    return scores, AttemptScores.of(played[plan.who], plan.num_attempts, seed, reports)


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


def _show_attempts(console: Console, who: str, scores: AttemptScores) -> None:
    """Print pass@k, mean@k and reward with their intervals."""
    from rich.table import Table

    table = Table.grid(padding=(0, 3))
    table.add_column(style="bold")
    table.add_column(justify="right", no_wrap=True)
    for k, found in scores.pass_at.items():
        table.add_row(f"{legible(who)} pass@{k}", _range(found))
    if scores.mean is not None:
        table.add_row(f"{legible(who)} mean@{scores.num_attempts}", _range(scores.mean))
    table.add_row(f"{legible(who)} reward", _range(scores.reward, "4g"))
    console.print(table)
    if not scores.pass_at:
        console.print(NO_SUCCESS, style="yellow")
    num_short = sum(task.attempts < scores.num_attempts for task in scores.tasks)
    if num_short:
        console.print(
            f"{num_short:,} of {len(scores.tasks):,} tasks had attempts that failed with an error: "
            f"those attempts are not counted, and pass@{scores.num_attempts} leaves these tasks out"
        )


def _range(found: Estimate, form: str = "3f") -> str:
    return f"{found.value:.{form}} ({found.low:.{form}} to {found.high:.{form}})"
