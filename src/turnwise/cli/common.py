"""Helpers that several commands share: parameters, imports, printing."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer

from turnwise.errors import ConfigError
from turnwise.legible import legible as legible

if TYPE_CHECKING:
    from rich.console import Console

INTERRUPTED = 130
"""The exit code after Ctrl-C."""
_CONTROL = re.compile(r"[\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def parameter_overrides(parameters: list[str] | None) -> list[str]:
    """Return the options `--param KEY=VALUE` as overrides of settings."""
    for parameter in parameters or []:
        if "=" not in parameter.lstrip("="):
            raise ConfigError(
                f"--param got {parameter!r}, expected KEY=VALUE, for example --param size=6"
            )
    return [f"environment.params.{parameter}" for parameter in parameters or []]


def make_console(stderr: bool = False, quiet: bool = False) -> Console:
    """Return a console of at most 100 columns; lines to a file or a pipe are not wrapped."""
    from turnwise.progress.lines import LegibleConsole

    console = LegibleConsole(stderr=stderr, quiet=quiet, highlight=False, markup=False, emoji=False)
    console.width = min(console.width, 100) if console.is_terminal else 10_000
    return console


@contextlib.contextmanager
def working(text: str) -> Iterator[None]:
    """Show a spinner with this text on a terminal; print nothing to a file or a pipe."""
    console = make_console(stderr=True)
    if not console.is_terminal:
        yield
        return
    from rich.text import Text

    with console.status(Text(legible(text))):
        yield


def say(text: str, *, err: bool = False) -> None:
    """Print a line without style to the standard output or the standard error."""
    typer.echo(legible(text), err=err)


def print_file(text: str) -> None:
    """Print a file's content: unchanged to a pipe, without control characters to a terminal."""
    typer.echo(legible(text) if sys.stdout.isatty() else text, nl=not text.endswith("\n"))


def print_json(value: Any, indent: int | None = 1) -> None:
    """Print one JSON value to the standard output, with control characters escaped."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, default=repr)
    # JSON escapes the first 32 control characters by itself; half a surrogate pair has no UTF-8.
    typer.echo(_CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text))
