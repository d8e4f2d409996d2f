"""What several commands share: finding the environment, its settings, and where to print."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnwise.cli import completion
from turnwise.errors import ConfigError
from turnwise.legible import legible as legible

if TYPE_CHECKING:
    from rich.console import Console

    from turnwise.config import EnvironmentConfig

_ACTING = re.compile("[\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

EnvironmentName = Annotated[
    str,
    typer.Argument(
        metavar="ENV",
        help="A name that `turnwise envs` lists, or your own: path/to/file.py:ClassName.",
        show_default=False,
        autocompletion=completion.environments,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Parameters = Annotated[
    list[str] | None,
    typer.Option(
        "--param",
        "-p",
        metavar="KEY=VALUE",
        help="A setting of the environment; may be given many times.",
        show_default=False,
    ),
]
TrustRemoteCode = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        help="Run Python code that a folder or a model names, though you have not run it before.",
    ),
]
MaxSteps = Annotated[
    int | None,
    typer.Option(min=1, help="Most actions in an episode.", show_default="the environment's own"),
]


def environment_config(
    name: str, parameters: list[str] | None, max_steps: int | None
) -> EnvironmentConfig:
    """The environment's section of the configuration, from the options of a command."""
    from turnwise.config import ConfigStore

    for parameter in parameters or []:
        if "=" not in parameter.lstrip("="):
            raise ConfigError(
                f"--param got {parameter!r}, expected KEY=VALUE, for example --param size=6"
            )
    overrides = [f"environment.params.{parameter}" for parameter in parameters or []]
    if max_steps is not None:
        overrides.append(f"environment.max_steps={max_steps}")
    config = ConfigStore.load(overrides=overrides).environment
    config.name = name
    return config


def make_importable(name: str, folder: Path | None = None) -> None:
    """Let `package.module:Class` be found from a folder (None: the present one), and what a file
    imports from beside itself, as `python file.py` would. A built-in name needs neither."""
    place = name.rpartition(":")[0]
    if not place:
        return
    folders = ["" if folder is None else str(folder)]
    if place.endswith(".py"):
        folders.append(str(Path(place).resolve().parent))
    sys.path[:0] = [path for path in folders if path not in sys.path]


def make_console(stderr: bool = False, quiet: bool = False) -> Console:
    """A console as wide as reads well; lines that go to a file or a pipe are left whole."""
    from turnwise.progress.display import LegibleConsole

    console = LegibleConsole(stderr=stderr, quiet=quiet, highlight=False, markup=False, emoji=False)
    console.width = min(console.width, 100) if console.is_terminal else 10_000
    return console


@contextlib.contextmanager
def working(text: str) -> Iterator[None]:
    """Show that something goes on, to a person at a terminal; nothing to a file or a pipe."""
    console = make_console(stderr=True)
    if not console.is_terminal:
        yield
        return
    from rich.text import Text

    with console.status(Text(legible(text))):
        yield


def say(text: str, *, err: bool = False) -> None:
    """A line without style, on the standard output or the standard error."""
    typer.echo(legible(text), err=err)


def print_file(text: str) -> None:
    """The content of a file: byte for byte into a pipe, legible on a terminal."""
    typer.echo(legible(text) if sys.stdout.isatty() else text, nl=not text.endswith("\n"))


def print_json(value: Any, indent: int | None = 1) -> None:
    """For machines: one object, on the standard output."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, default=repr)
    # JSON escapes the first 32 control characters by itself.
    typer.echo(_ACTING.sub(lambda found: f"\\u{ord(found[0]):04x}", text))
