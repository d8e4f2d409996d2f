"""`turnwise check-env`: run the checker and print its findings, each with its fix."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnwise.cli import completion
from turnwise.cli.common import AsJson, MaxSteps, Parameters, TrustRemoteCode
from turnwise.cli.run_parts import (
    DatasetOption,
    EnvironmentOption,
    ParserOption,
    PartOption,
    Supplied,
    ToolOption,
)
from turnwise.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from turnwise.config import ConfigStore
    from turnwise.env.checker import CheckReport

_MARKS = {"error": ("✗", "bold red"), "warning": ("!", "bold yellow"), "note": ("i", "bold blue")}


def check_env(
    env: Annotated[
        str,
        typer.Argument(
            metavar="ENV_OR_RUN",
            help="A name that `turnwise envs` lists, your own (path/to/file.py:ClassName), or the "
            "folder of a run: its environment, with its parameters, tools and dataset.",
            show_default=False,
            autocompletion=completion.environments_and_runs,
        ),
    ],
    param: Parameters = None,
    max_steps: MaxSteps = None,
    other_env: EnvironmentOption = None,
    dataset: DatasetOption = None,
    tool: ToolOption = None,
    parser: ParserOption = None,
    part: PartOption = None,
    seed: Annotated[int, typer.Option(help="The first seed to play.")] = 0,
    episodes: Annotated[int, typer.Option(min=1, help="How many seeds to play.")] = 5,
    slow_after: Annotated[
        float, typer.Option(metavar="SECONDS", help="Mean time above which steps are slow.")
    ] = 0.1,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time after which a call hangs.")
    ] = 10.0,
    trust_remote_code: TrustRemoteCode = False,
    as_json: AsJson = False,
) -> None:
    """Check that an environment is fit for training; every finding names the fix.

    The rows of a dataset are the tasks of the episodes that are played (`self.task`).
    The exit code is 1 if there are errors, 0 if there are none.

    [bold]Examples[/bold]

    turnwise check-env my_env.py:MyEnvironment
    turnwise check-env my_env.py:MyEnvironment --dataset rows.jsonl
    turnwise check-env runs/mine
    turnwise check-env guess-number
    turnwise check-env gym:FrozenLake-v1 --param map_name=8x8
    turnwise check-env my_env.py:MyEnvironment --json | jq '.findings[].fix'
    """
    from turnwise.cli.common import make_console, print_json, working
    from turnwise.cli.run_parts import restore, settings_of
    from turnwise.cli.run_place import find_run, not_a_run, runs_in
    from turnwise.config import ConfigStore
    from turnwise.env.checker import check_env as run_checks
    from turnwise.user_code import settings_from

    source = find_run(env)
    if source is None and runs_in(Path(env).expanduser()):
        raise not_a_run(env)
    if source is None and other_env is not None:
        raise ConfigError("--env is for a run whose own environment cannot be restored.")
    name = env if source is None else other_env
    supplied = Supplied(
        name, param, max_steps, dataset=dataset, tools=tool, parser=parser, part=part
    )
    supplied.allow_code()
    with (
        settings_from(source, is_trusted=trust_remote_code),
        working(f"checking {env}"),
        contextlib.ExitStack() as closing,
    ):
        if source is None:
            config = ConfigStore()
            supplied.put_into(config)
        else:
            config = settings_of(source)
            restore(config, source, supplied, is_checked=False)
        report = run_checks(
            config.environment.name,
            config.environment,
            num_episodes=episodes,
            seed=seed,
            slow_after=slow_after,
            timeout=timeout,
            **_components(config, source is not None, closing),
        )
    if as_json:
        print_json({**dataclasses.asdict(report), "ok": report.ok})
    else:
        _show(make_console(), report)
    raise typer.Exit(0 if report.ok else 1)


def _components(config: ConfigStore, is_run: bool, closing: contextlib.ExitStack) -> dict[str, Any]:
    """Rows, tools and parser that the environment is played with; most environments have none."""
    from turnwise.tools.by_name import parser_by_name, tools_by_name

    found: dict[str, Any] = {}
    if config.dataset.path is not None or config.eval_dataset.path is not None:
        from turnwise.cli.run_parts import rows_of
        from turnwise.trainer.components import UserComponents

        found["dataset"] = rows_of(UserComponents().filled_from(config))
    if config.tools:
        found["tools"] = tools_by_name(config.tools, closing)
    found["parser"] = parser_by_name(config.parser)
    if is_run and config.parser == "auto" and (config.tools or _has_tools(config)):
        from turnwise.tools import get_parser
        from turnwise.trainer.state import load_configured_tokenizer

        # Calls are written as the chat template of the run's model has it.
        template = load_configured_tokenizer(config).chat_template
        found["parser"] = get_parser("auto", template=template)
    return found


def _has_tools(config: ConfigStore) -> bool:
    from turnwise.env.catalog import source_by_name
    from turnwise.tools.base import has_marked_tools

    source = source_by_name(config.environment.name)
    return isinstance(source, type) and has_marked_tools(source)


def _show(console: Console, report: CheckReport) -> None:
    from rich.padding import Padding
    from rich.text import Text

    def indented(text: Text, below: int = 0) -> Padding:
        return Padding(text, (0, 0, below, 2), expand=False)

    for finding in report:
        mark, style = _MARKS[finding.level]
        console.print(Text.assemble((f"{mark} {finding.level}", style), f"  {finding.check}"))
        console.print(indented(Text(finding.message)))
        console.print(indented(Text.assemble(("fix: ", "bold green"), finding.fix), below=1))
    if report.passed:
        console.print(Text.assemble(("✓ passed: ", "green"), ", ".join(report.passed)))
    if report.skipped:
        text = ", ".join(report.skipped)
        console.print(Text(f"- not run until the above is fixed: {text}", "dim"))
    console.print(Text(report.summary, "bold"))
