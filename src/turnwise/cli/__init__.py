"""The command line `turnwise`. Each command imports its dependencies when it runs, so that
`turnwise --help` is fast."""

import inspect
import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from turnwise import __version__
from turnwise.cli.chat import chat
from turnwise.cli.common import say
from turnwise.cli.doctor import doctor
from turnwise.cli.environments import check_env, envs
from turnwise.cli.eval import evaluate
from turnwise.cli.export import export
from turnwise.cli.play import play
from turnwise.cli.plot import plot
from turnwise.cli.serve import serve, serve_env, view
from turnwise.cli.start import config, init
from turnwise.cli.train import train
from turnwise.errors import TurnwiseError
from turnwise.legible import LegibleFormatter

_EXAMPLES = "[bold]Examples[/bold]"

app = typer.Typer(
    name="turnwise",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _add(command: Callable[..., None], name: str | None = None) -> None:
    """Register a command; the examples of its docstring go to the end of its help."""
    about, _, examples = inspect.cleandoc(command.__doc__ or "").partition(_EXAMPLES)
    lines = [f"[cyan]{line}[/cyan]" for line in examples.splitlines() if line]
    epilog = "\n\n".join([_EXAMPLES, *lines])
    app.command(name, help=about, epilog=epilog)(command)


_add(train)
_add(evaluate, "eval")
_add(serve_env, "serve-env")
for _command in (view, play, doctor, init, check_env, envs, config, plot, chat, export, serve):
    _add(_command)


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

    Start with: turnwise train, a demo that learns in minutes; turnwise init my_env, your own.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command, and print errors of turnwise as messages."""
    # GNU OpenMP reads this when torch is loaded. By default a thread that waits for the others
    # spins for up to a millisecond. Beside busy processes it so takes the core that they need, and
    # small models ran several times slower.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    if logging.lastResort is not None:  # warnings quote environments and models
        logging.lastResort.setFormatter(LegibleFormatter("%(message)s"))
    try:
        app(args=arguments)
    except (TurnwiseError, OSError) as error:  # such as a folder that cannot be written
        say(f"error: {error}", err=True)
        sys.exit(2)
    except Exception:  # its traceback quotes them too
        say(traceback.format_exc().rstrip("\n"), err=True)
        sys.exit(1)
