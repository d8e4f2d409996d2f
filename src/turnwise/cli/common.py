"""Helpers that several commands share: parameters, printing, typed lines."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from typing import Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.status import Status
from rich.text import Text

from turnwise.errors import ConfigError
from turnwise.legible import legible
from turnwise.progress.lines import LegibleConsole


def parameter_overrides(parameters: list[str] | None) -> list[str]:
    """Return the options `--param KEY=VALUE` as overrides of settings."""
    for parameter in parameters or []:
        if "=" not in parameter.lstrip("="):
            raise ConfigError(f"--param got {parameter!r}, expected KEY=VALUE such as size=6")
    return [f"environment.params.{parameter}" for parameter in parameters or []]


def make_console(stderr: bool = False, quiet: bool = False) -> Console:
    """Return a console of at most 100 columns; lines to a file or a pipe are not wrapped.

    It prints control characters of any text as symbols.
    """
    console = LegibleConsole(stderr=stderr, quiet=quiet, highlight=False, markup=False, emoji=False)
    console.width = min(console.width, 100) if console.is_terminal else 10_000
    return console


def working(text: str) -> Status:
    """Return a spinner with this text on a terminal; it prints nothing to a file or a pipe."""
    return make_console(stderr=True).status(Text(text))


def print_finding(console: Console, title: Text, lines: Sequence[Text], fix: str) -> None:
    """Print what was found, and indented below it what that means, and the fix."""
    console.print(title)
    for line in [*lines, Text.assemble(("fix: ", "bold green"), fix)]:
        console.print(Padding(line, (0, 0, 0, 2), expand=False))


def read_line(prompt: str) -> str:
    """Return a line that a person types, with arrow keys and a history."""
    with contextlib.suppress(ImportError):  # not on every system
        import readline  # noqa: F401 - its import changes `input`
    return input(prompt)


def say(text: str, *, err: bool = False) -> None:
    """Print a line without style to the standard output or the standard error."""
    typer.echo(legible(text), err=err)


def print_file(text: str) -> None:
    """Print a file's content: unchanged to a pipe, without control characters to a terminal."""
    typer.echo(legible(text) if sys.stdout.isatty() else text, nl=not text.endswith("\n"))


def print_json(value: Any, indent: int | None = 1) -> None:
    """Print one JSON value to the standard output, in ASCII."""
    typer.echo(json.dumps(value, indent=indent, default=repr))
