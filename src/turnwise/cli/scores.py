"""Scores of players over many episodes, and pass@k, with 95 % intervals; and their tables.

Episodes of one task are not independent, so each task counts as one observation: the mean of its
episodes. Where each task's value is 0 or 1, the interval is Wilson's; otherwise the tasks are
resampled (bootstrap percentiles).

pass@k is how often at least one of k attempts at a task solves it. With n attempts of which c
solved the task, 1 - C(n-c, k) / C(n, k) is the fraction of subsets of k attempts with a solved one:
an unbiased estimate of pass@k for every k up to n.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from turnwise.cli.common import legible
from turnwise.errors import ConfigError
from turnwise.runs.headline import Z, wilson_interval

if TYPE_CHECKING:
    from rich.console import Console

    from turnwise.episode import EpisodeResult

_NUM_RESAMPLES = 2000
NO_SUCCESS = (
    "pass@k needs to know which attempts solved their task, and no step reported "
    "info['success']: only the mean reward is given. Return {'success': True or False} with the "
    "last step of an episode."
)


def estimate(values: Sequence[float], seed: int, is_rate: bool = True) -> dict[str, float]:
    """Return the mean of one value per task, of at least one task, with its 95 % interval."""
    mean, number = statistics.fmean(values), len(values)
    if is_rate and all(value in (0.0, 1.0) for value in values):
        low, high = wilson_interval(mean, number)
        return {"value": mean, "low": low, "high": high, "num_tasks": number}
    import numpy as np

    # Of n tasks n - 1 are drawn, so that the variance of these means is the unbiased estimate
    # s**2 / n (Rao and Wu 1988); with n draws it would be (n - 1) / n of it.
    draws = np.random.default_rng(seed).integers(number, size=(_NUM_RESAMPLES, max(number - 1, 1)))
    means = np.asarray(values, dtype=np.float64)[draws].mean(axis=1)
    low, high = map(float, np.quantile(means, [0.025, 0.975]))
    return {"value": mean, "low": low, "high": high, "num_tasks": number}


def player_scores(
    results: Sequence[EpisodeResult], reports: bool, seed: int = 0
) -> dict[str, Any] | None:
    """Return the scores of one player; None if every episode failed with an error.

    Success and reward are means over tasks, with 95 % intervals. All episodes of a row are one
    task: counting each of them would make the intervals too narrow. Rates are fractions of the
    episodes. `reports`: whether the environment ever reports success.
    """
    whole = [result for result in results if not result.status.is_error]
    by_task: dict[int, list[tuple[float, bool]]] = {}
    for result in whole:
        for agent in result.agents:
            if agent.reward is not None:
                outcome = (agent.reward.total, agent.trajectory.success)
                by_task.setdefault(result.group, []).append(outcome)
    if not by_task:
        return None
    tasks = list(by_task.values())
    every = [outcome for outcomes in tasks for outcome in outcomes]
    if len(tasks) == 1:  # then the episodes of the only row are the observations
        tasks = [[outcome] for outcome in every]
    rewards = [statistics.fmean(reward for reward, _ in outcomes) for outcomes in tasks]
    success = estimate(
        [statistics.fmean(solved for _, solved in outcomes) for outcomes in tasks], seed
    )
    # If all tasks have equally many episodes, it is the cluster-robust error of their mean.
    error = statistics.stdev(rewards) / math.sqrt(len(rewards)) if len(rewards) > 1 else 0.0
    return {
        "episodes": len(whole),
        "tasks": len({result.group for result in whole}),
        "success": success["value"] if reports else None,
        "success_low": success["low"] if reports else None,
        "success_high": success["high"] if reports else None,
        "reward": statistics.fmean(rewards),
        "reward_std": statistics.stdev(reward for reward, _ in every) if len(every) > 1 else 0.0,
        "reward_margin": Z * error,  # half of the interval
        "turns": sum(result.num_turns for result in whole) / len(whole),
        "truncated": statistics.fmean(result.status.is_truncated for result in whole),
        "errors": 1 - len(whole) / len(results),
    }


def attempt_scores(
    results: Sequence[EpisodeResult], num_attempts: int, seed: int, reports: bool
) -> dict[str, Any] | None:
    """Return pass@k, mean@n and reward over all tasks, and the attempts at each; None if every
    attempt failed.

    Attempts that failed with an error are not counted, and a pass@k leaves out tasks with fewer
    than k others. `reports`: whether the environment ever reports success.
    """
    if any(len(result.agents) > 1 for result in results):
        raise ConfigError(
            "--k counts the tasks that one agent solves, and this environment has several "
            "agents in an episode. Leave out --k."
        )
    tasks: dict[int, dict[str, Any]] = {}
    rewards: dict[int, list[float]] = {}
    for result in results:
        task = tasks.setdefault(
            result.group, {"seed": result.seed, "attempts": 0, "solved": 0, "reward": None}
        )
        if not result.status.is_error and result.reward is not None:
            task["attempts"] += 1
            task["solved"] += result.trajectory.success
            rewards.setdefault(result.group, []).append(result.reward.total)
            task["reward"] = statistics.fmean(rewards[result.group])
    played = [task for task in tasks.values() if task["attempts"]]
    if not played:
        return None
    pass_at = {}
    for k in shown_ks(num_attempts) if reports else []:
        enough = [task for task in played if task["attempts"] >= k]
        if enough:
            rates = [pass_at_k(task["attempts"], task["solved"], k) for task in enough]
            pass_at[str(k)] = estimate(rates, seed)
    rates = [task["solved"] / task["attempts"] for task in played]
    return {
        "k": num_attempts,
        "pass_at_k": pass_at or None,
        "mean_at_k": estimate(rates, seed) if reports else None,
        "reward": estimate([task["reward"] for task in played], seed, is_rate=False),
        "reason": None if pass_at else NO_SUCCESS,
        "tasks": list(tasks.values()),
    }


def pass_at_k(num_attempts: int, num_solved: int, k: int) -> float:
    """Return the unbiased estimate of the chance that one of k attempts solves the task.

    >>> pass_at_k(4, 1, 2), pass_at_k(4, 1, 4), pass_at_k(4, 0, 4)
    (0.5, 1.0, 0.0)
    """
    return 1.0 - math.comb(num_attempts - num_solved, k) / math.comb(num_attempts, k)


def shown_ks(most: int) -> list[int]:
    """Return the powers of two up to `most`, and `most` itself.

    >>> shown_ks(6)
    [1, 2, 4, 6]
    """
    powers = [2**power for power in range(most.bit_length()) if 2**power <= most]
    return powers if powers[-1] == most else [*powers, most]


def show_scores(console: Console, scores: Mapping[str, Any], who: str, name: str) -> None:
    """Print a table of all players; if there were several attempts, one of pass@k first.

    `who` is the key of the first player, `name` what it is called.
    """

    def show(rows: Sequence[Sequence[str]]) -> None:
        table = Table.grid(padding=(0, 3))
        table.add_column(style="bold")
        for _ in rows[0][1:]:
            table.add_column(justify="right", no_wrap=True)
        for cells in rows:
            table.add_row(*cells, style=None if cells[0] else "dim")
        console.print(table)

    def interval(value: float, low: float, high: float, form: str = ".3f") -> str:
        return f"{value:{form}} ({low:{form}} to {high:{form}})"

    first = legible(name)
    players = dict(scores)
    if (attempts := players.pop("attempts", None)) is not None:
        del players[who]
        estimates = {f"pass@{k}": value for k, value in (attempts["pass_at_k"] or {}).items()}
        if attempts["mean_at_k"] is not None:
            estimates[f"mean@{attempts['k']}"] = attempts["mean_at_k"]
        estimates["reward"] = attempts["reward"]
        rows: list[Sequence[str]] = []
        for kind, each in estimates.items():
            form = ".4g" if kind == "reward" else ".3f"
            shown = interval(each["value"], each["low"], each["high"], form)
            rows.append((f"{first} {kind}", shown))
        show(rows)
        if attempts["reason"] is not None:
            console.print(attempts["reason"], style="yellow")
        if num_short := sum(task["attempts"] < attempts["k"] for task in attempts["tasks"]):
            console.print(
                f"{num_short:,} of {len(attempts['tasks']):,} tasks had attempts that failed with "
                f"an error, which are not counted; pass@{attempts['k']} leaves these tasks out"
            )
    columns = ["reward", "std", "turns", "truncated"]
    if any(values["success"] is not None for values in players.values()):
        columns.insert(0, "success")
    if any(values["errors"] for values in players.values()):
        columns.append("errors")
    rows = [("", *columns)]
    for player, values in players.items():
        value, low, high = (values[f"success{end}"] or 0.0 for end in ("", "_low", "_high"))
        cells = {
            "success": interval(value, low, high),
            "reward": f"{values['reward']:.4g} ± {values['reward_margin']:.2g}",
            "std": f"{values['reward_std']:.3g}",
            "turns": f"{values['turns']:.2f}",
            "truncated": f"{values['truncated']:.1%}",
            "errors": f"{values['errors']:.1%}",
        }
        rows.append((first if player == who else player, *(cells[column] for column in columns)))
    show(rows)
