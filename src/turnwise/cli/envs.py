"""`turnwise envs`: lists the environments."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from turnwise.cli.options import AsJson

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
    from rich.table import Table

    from turnwise.cli.common import make_console, print_json
    from turnwise.env.catalog import BUILT_IN

    built_in = {}
    for name, target in BUILT_IN.items():
        module, _, attribute = target.partition(":")
        lines = (getattr(import_module(module), attribute).__doc__ or "").strip().splitlines()
        built_in[name] = lines[0] if lines else ""
    forms = []
    for form, package, about in FORMS:
        is_missing = package is not None and find_spec(package) is None
        install = f"pip install 'turnwise[{form.partition(':')[0]}]'" if is_missing else None
        forms.append({"form": form, "about": about, "missing": install})
    if as_json:
        names = [{"name": name, "about": about} for name, about in built_in.items()]
        print_json({"built_in": names, "forms": forms})
        return
    others = {
        str(item["form"]): f"{item['about']} (first: {item['missing']})"
        if item["missing"]
        else str(item["about"])
        for item in forms
    }
    console = make_console()
    for title, rows in (("Built in", built_in), ("\nOther names", others)):
        table = Table.grid(padding=(0, 2))
        table.add_column(style="cyan", no_wrap=True)
        table.add_column()
        for name, about in rows.items():
            table.add_row(name, about)
        console.print(title, style="bold")
        console.print(table)
