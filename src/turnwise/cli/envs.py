"""`turnwise envs`: lists the environments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnwise.cli.options import AsJson

if TYPE_CHECKING:
    from rich.table import Table

# The form of a name, the package that it needs, and a description.
FORMS: tuple[tuple[str, str | None, str], ...] = (
    ("gym:CartPole-v1", "gymnasium", "any registered Gymnasium environment, as text"),
    ("textarena:TicTacToe-v0", "textarena", "TextArena's offline games"),
    ("reasoning-gym:leg_counting", "reasoning_gym", "reasoning-gym's tasks, one turn each"),
    ("path/to/file.py:ClassName", None, "your own environment, in a file"),
    ("package.module:ClassName", None, "your own environment, in a package"),
)


def envs(as_json: AsJson = False) -> None:
    """List the environments that can be played, checked and trained on.

    [bold]Examples[/bold]

    turnwise envs
    turnwise play grid-world
    turnwise envs --json | jq -r '.built_in[].name'
    """
    from turnwise.cli.common import make_console, print_json

    if as_json:
        names = [{"name": name, "about": about} for name, about in _built_in().items()]
        forms = [
            {"form": form, "about": about, "missing": _how_to_install(form, package) or None}
            for form, package, about in FORMS
        ]
        print_json({"built_in": names, "forms": forms})
        return
    others = {}
    for form, package, about in FORMS:
        missing = _how_to_install(form, package)
        others[form] = f"{about} (first: {missing})" if missing else about
    console = make_console()
    console.print("Built in", style="bold")
    console.print(_table(_built_in()))
    console.print("\nOther names", style="bold")
    console.print(_table(others))


def _built_in() -> dict[str, str]:
    """Return each name with the first line of its docstring."""
    from importlib import import_module

    from turnwise.env.catalog import BUILT_IN

    found = {}
    for name, target in BUILT_IN.items():
        module, _, attribute = target.partition(":")
        lines = (getattr(import_module(module), attribute).__doc__ or "").strip().splitlines()
        found[name] = lines[0] if lines else ""
    return found


def _table(rows: dict[str, str]) -> Table:
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    for row in rows.items():
        table.add_row(*row)
    return table


def _how_to_install(form: str, package: str | None) -> str:
    from importlib.util import find_spec

    if package is None or find_spec(package) is not None:
        return ""
    return f"pip install 'turnwise[{form.partition(':')[0]}]'"
