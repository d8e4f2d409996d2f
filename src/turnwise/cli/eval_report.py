"""What `turnwise eval` prints: conversations, and the scores of who played."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwise.cli.common import legible
from turnwise.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from turnwise.cli.intervals import Estimate
    from turnwise.cli.pass_at_k import AttemptScores
    from turnwise.cli.scores import Scores
    from turnwise.episode import EpisodeResult


def reported_headline(source: Path | None) -> dict[str, Any] | None:
    """Return the headline that the run reported in training; None for a model without a run."""
    from turnwise.cli.run_place import run_of
    from turnwise.runs.headline import headline
    from turnwise.runs.metrics_log import MetricsLog, numbers_of
    from turnwise.runs.run_folder import RunFolder

    if source is None:
        return None
    folder = RunFolder(run_of(source))
    try:
        steps = [numbers_of(line) for line in MetricsLog(folder.metrics_file).read()]
    except ConfigError:  # a damaged file of metrics does not keep the model from playing
        return None
    found = headline(steps, folder.evaluated_on)
    return None if found is None else found.to_dict()


def show_conversation(console: Console, result: EpisodeResult) -> None:
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


def show_scores(console: Console, scores: Mapping[str, Scores | None]) -> None:
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


def show_attempts(console: Console, who: str, scores: AttemptScores) -> None:
    """Several attempts at each task: pass@k, mean@k and reward with their intervals."""
    from rich.table import Table

    from turnwise.cli.pass_at_k import NO_SUCCESS

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
