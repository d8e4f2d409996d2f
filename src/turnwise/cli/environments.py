"""`turnwise envs` lists the environments; `turnwise check-env` checks one."""

import contextlib
import dataclasses
import inspect
from importlib.util import find_spec
from typing import Annotated, Any

import typer
from rich.table import Column, Table
from rich.text import Text

from turnwise.cli import options as opt
from turnwise.cli.common import make_console, print_finding, print_json, working
from turnwise.cli.run_paths import find_source
from turnwise.cli.settings import Overrides, open_settings
from turnwise.env.catalog import BUILT_IN, source_by_name
from turnwise.env.checker import check_env as run_checks
from turnwise.errors import ConfigError
from turnwise.tools import get_parser
from turnwise.tools.base import tool_marks
from turnwise.tools.by_name import parser_by_name, tools_by_name
from turnwise.user_code import settings_from

_MARKS = {"error": ("✗", "bold red"), "warning": ("!", "bold yellow"), "note": ("i", "bold blue")}
# The form of a name, the package that it needs, and a description.
FORMS: tuple[tuple[str, str | None, str], ...] = (
    ("gym:CartPole-v1", "gymnasium", "any registered Gymnasium environment, as text"),
    ("textarena:TicTacToe-v0", "textarena", "TextArena's offline games"),
    ("reasoning-gym:leg_counting", "reasoning_gym", "reasoning-gym's tasks, one turn each"),
    ("openenv:http://localhost:8000", None, "an OpenEnv server; or its folder, or its command"),
    ("path/to/file.py:ClassName", None, "your own environment, in a file"),
    ("package.module:ClassName", None, "your own environment, in a package"),
)


def envs(as_json: opt.AsJson = False) -> None:
    """List the environments that can be played, checked and trained on.

    [bold]Examples[/bold]

    turnwise envs
    turnwise play grid-world
    turnwise envs --json | jq -r '.built_in[].name'
    """
    texts = {name: inspect.getdoc(source_by_name(name)) or "" for name in BUILT_IN}
    built_in = {name: text.partition("\n")[0] for name, text in texts.items()}
    forms, others = [], {}
    for form, package, about in FORMS:
        is_missing = package is not None and find_spec(package) is None
        install = f"pip install 'turnwise[{form.partition(':')[0]}]'" if is_missing else None
        forms.append({"form": form, "about": about, "missing": install})
        others[form] = f"{about} (first: {install})" if install else about
    if as_json:
        names = [{"name": name, "about": about} for name, about in built_in.items()]
        print_json({"built_in": names, "forms": forms})
        return
    console = make_console()
    for title, rows in (("Built in", built_in), ("\nOther names", others)):
        table = Table.grid(Column(style="cyan", no_wrap=True), Column(), padding=(0, 2))
        for name, about in rows.items():
            table.add_row(name, about)
        console.print(title, style="bold")
        console.print(table)


def check_env(
    ctx: typer.Context,
    env: Annotated[str, opt.argument("ENV_OR_RUN", opt.ENV_OR_RUN)],
    param: opt.Parameters = None,
    max_steps: opt.MaxSteps = None,
    other_env: opt.EnvironmentOption = None,
    dataset: opt.DatasetOption = None,
    tool: opt.ToolOption = None,
    parser: opt.ParserOption = None,
    part: opt.PartOption = None,
    seed: Annotated[int, opt.option("First seed.")] = 0,
    episodes: Annotated[int, opt.option("Number of seeds.", min=1)] = 5,
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
    turnwise check-env gym:FrozenLake-v1 --param map_name=8x8
    turnwise check-env my_env.py:MyEnvironment --json | jq '.findings[].fix'
    """
    source = find_source(env)
    if source is None and other_env is not None:
        raise ConfigError("--env is for a run whose own environment cannot be restored.")
    name = env if source is None else other_env
    overrides = Overrides.typed(ctx.params, env=name)
    overrides.allow_code()
    with (
        settings_from(source, is_trusted=trust_remote_code),
        working(f"checking {env}"),
        contextlib.ExitStack() as closing,
    ):
        config = open_settings(source, overrides, is_checked=False)
        components: dict[str, Any] = {"parser": parser_by_name(config.parser)}
        if config.agent or config.dataset.path or config.eval_dataset.path:
            from turnwise.trainer.components import UserComponents, no_environment

            if config.agent is not None:
                raise no_environment(config.agent)
            components["dataset"] = UserComponents().filled_from(config).eval_rows
        if config.tools:
            components["tools"] = tools_by_name(config.tools, closing)
        if source is not None and config.parser == "auto":
            kind = source_by_name(config.environment.name)
            if config.tools or (isinstance(kind, type) and tool_marks(kind)):
                from turnwise.trainer.state import load_configured_tokenizer

                # The parser `auto` follows the chat template of the run's model.
                template = load_configured_tokenizer(config).chat_template
                components["parser"] = get_parser("auto", template=template)
        components |= {"num_episodes": episodes, "seed": seed}
        report = run_checks(config.environment.name, config.environment, **components)
    console = make_console(quiet=as_json)
    if as_json:
        print_json({**dataclasses.asdict(report), "ok": report.ok})
    for finding in report:
        mark, style = _MARKS[finding.level]
        title = Text.assemble((f"{mark} {finding.level}", style), f"  {finding.check}")
        print_finding(console, title, [Text(finding.message)], finding.fix)
        console.print()
    if report.passed:
        console.print(Text.assemble(("✓ passed: ", "green"), ", ".join(report.passed)))
    if report.skipped:
        skipped = f"- not run until the above is fixed: {', '.join(report.skipped)}"
        console.print(Text(skipped, "dim"))
    console.print(Text(report.summary, "bold"))
    raise typer.Exit(0 if report.ok else 1)
