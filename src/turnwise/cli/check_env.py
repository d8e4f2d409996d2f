"""`turnwise check-env`: run the checker and print its findings, each with its fix."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnwise.cli import options as opt
from turnwise.cli.settings import Overrides, open_settings
from turnwise.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from turnwise.config import ConfigStore
    from turnwise.env.checker import CheckReport

_MARKS = {"error": ("✗", "bold red"), "warning": ("!", "bold yellow"), "note": ("i", "bold blue")}


def check_env(
    env: Annotated[str, opt.argument("ENV_OR_RUN", opt.ENV_OR_RUN)],
    param: opt.Parameters = None,
    max_steps: opt.MaxSteps = None,
    other_env: opt.EnvironmentOption = None,
    dataset: opt.DatasetOption = None,
    tool: opt.ToolOption = None,
    parser: opt.ParserOption = None,
    part: opt.PartOption = None,
    seed: Annotated[int, typer.Option(help="First seed.")] = 0,
    episodes: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 5,
    slow_after: Annotated[
        float, typer.Option(metavar="SECONDS", help="Mean time of a step that counts as slow.")
    ] = 0.1,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time after which a call counts as hanging.")
    ] = 10.0,
    trust_remote_code: opt.TrustRemoteCode = False,
    as_json: opt.AsJson = False,
) -> None:
    """Check that an environment is ready for training; every finding comes with a fix.

    Episodes get the rows of the dataset as their tasks (`self.task`).
    The exit code is 1 if there are errors, 0 otherwise.

    [bold]Examples[/bold]

    turnwise check-env my_env.py:MyEnvironment
    turnwise check-env my_env.py:MyEnvironment --dataset rows.jsonl
    turnwise check-env runs/mine
    turnwise check-env guess-number
    turnwise check-env gym:FrozenLake-v1 --param map_name=8x8
    turnwise check-env my_env.py:MyEnvironment --json | jq '.findings[].fix'
    """
    from turnwise.cli.common import make_console, print_json, working
    from turnwise.cli.run_paths import find_source
    from turnwise.env.checker import check_env as run_checks
    from turnwise.user_code import settings_from

    source = find_source(env)
    if source is None and other_env is not None:
        raise ConfigError("--env is for a run whose own environment cannot be restored.")
    name = env if source is None else other_env
    overrides = Overrides(
        name, param, max_steps, dataset=dataset, tool=tool, parser=parser, part=part
    )
    overrides.allow_code()
    with (
        settings_from(source, is_trusted=trust_remote_code),
        working(f"checking {env}"),
        contextlib.ExitStack() as closing,
    ):
        config = open_settings(source, overrides, is_checked=False)
        if config.agent is not None:
            from turnwise.trainer.components import no_environment

            raise no_environment(config.agent)
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
    """Return the dataset, tools and parser that the environment is played with."""
    from turnwise.env.catalog import source_by_name
    from turnwise.tools.base import has_marked_tools
    from turnwise.tools.by_name import parser_by_name, tools_by_name

    components: dict[str, Any] = {"parser": parser_by_name(config.parser)}
    if config.dataset.path is not None or config.eval_dataset.path is not None:
        from turnwise.trainer.components import UserComponents

        components["dataset"] = UserComponents().filled_from(config).eval_rows
    if config.tools:
        components["tools"] = tools_by_name(config.tools, closing)
    if is_run and config.parser == "auto":
        source = source_by_name(config.environment.name)
        if config.tools or (isinstance(source, type) and has_marked_tools(source)):
            from turnwise.tools import get_parser
            from turnwise.trainer.state import load_configured_tokenizer

            # The parser `auto` follows the chat template of the run's model.
            template = load_configured_tokenizer(config).chat_template
            components["parser"] = get_parser("auto", template=template)
    return components


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
