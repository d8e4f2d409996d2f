"""`turnwise check-env`: run the checker and print its findings, each with its cure."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from turnwise.cli.common import AsJson, EnvironmentName, MaxSteps, Parameters

if TYPE_CHECKING:
    from rich.console import Console

    from turnwise.env.checker import CheckReport

_MARKS = {"error": ("✗", "bold red"), "warning": ("!", "bold yellow"), "note": ("i", "bold blue")}


def check_env(
    env: EnvironmentName,
    param: Parameters = None,
    max_steps: MaxSteps = None,
    seed: Annotated[int, typer.Option(help="The first seed to play.")] = 0,
    episodes: Annotated[int, typer.Option(min=1, help="How many seeds to play.")] = 5,
    slow_after: Annotated[
        float, typer.Option(metavar="SECONDS", help="Mean time above which steps are slow.")
    ] = 0.1,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time after which a call hangs.")
    ] = 10.0,
    as_json: AsJson = False,
) -> None:
    """Check that an environment is fit for training; every finding says the cure.

    The exit code is 1 if there are errors, 0 if there are none.

    [bold]Examples[/bold]

    turnwise check-env my_env.py:MyEnvironment
    turnwise check-env guess-number
    turnwise check-env gym:FrozenLake-v1 --param map_name=8x8
    turnwise check-env my_env.py:MyEnvironment --json | jq '.findings[].cure'
    """
    from turnwise.cli.common import (
        environment_config,
        make_console,
        make_importable,
        print_json,
        working,
    )
    from turnwise.env.checker import check_env as run_checks

    make_importable(env)
    with working(f"checking {env}"):
        report = run_checks(
            env,
            environment_config(env, param, max_steps),
            num_episodes=episodes,
            seed=seed,
            slow_after=slow_after,
            timeout=timeout,
        )
    if as_json:
        print_json({**dataclasses.asdict(report), "ok": report.ok})
    else:
        _show(make_console(), report)
    raise typer.Exit(0 if report.ok else 1)


def _show(console: Console, report: CheckReport) -> None:
    from rich.padding import Padding
    from rich.text import Text

    def indented(text: Text, below: int = 0) -> Padding:
        return Padding(text, (0, 0, below, 2), expand=False)

    for finding in report:
        mark, style = _MARKS[finding.level]
        console.print(Text.assemble((f"{mark} {finding.level}", style), f"  {finding.check}"))
        console.print(indented(Text(finding.message)))
        console.print(indented(Text.assemble(("cure: ", "bold green"), finding.cure), below=1))
    if report.passed:
        console.print(Text.assemble(("✓ passed: ", "green"), ", ".join(report.passed)))
    if report.skipped:
        text = ", ".join(report.skipped)
        console.print(Text(f"- not run until the above is mended: {text}", "dim"))
    console.print(Text(report.summary, "bold"))
