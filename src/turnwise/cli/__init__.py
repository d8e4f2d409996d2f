"""The command `turnwise`: play and check environments, print the configuration, talk to a model.

What a command needs is imported when it runs, so that `turnwise --help` is quick.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from turnwise import __version__
from turnwise.cli.chat import chat
from turnwise.cli.check_env import check_env
from turnwise.cli.config import config
from turnwise.cli.doctor import doctor
from turnwise.cli.envs import envs
from turnwise.cli.eval import evaluate
from turnwise.cli.export import export
from turnwise.cli.init import init
from turnwise.cli.play import play
from turnwise.cli.plot import plot
from turnwise.cli.train import train
from turnwise.cli.view import view
from turnwise.errors import TurnwiseError

app = typer.Typer(
    name="turnwise",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(play)
app.command()(check_env)
app.command()(envs)
app.command()(config)
app.command()(chat)
app.command()(init)
app.command()(doctor)
app.command()(train)
app.command("eval")(evaluate)
app.command()(export)
app.command()(view)
app.command()(plot)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"turnwise {__version__}")
        raise typer.Exit


@app.callback()
def turnwise(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Train language-model agents by reinforcement learning in environments you write yourself.

    Start with: turnwise play guess-number
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; the one place where an error of turnwise becomes a message."""
    try:
        app(args=arguments)
    except TurnwiseError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
