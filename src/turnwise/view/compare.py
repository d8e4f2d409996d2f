"""The settings of several runs side by side: which of them differ, and whose code was changed."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from turnwise.view.runs import ViewedRun

# A run's name is above its column, and its folder makes no difference.
_NOT_COMPARED = {"checkpoint.run_name", "checkpoint.output_dir"}
# The setting that names what `run.json` has a hash of, and what another hash means.
_HASHED = {
    "environment": ("environment.name", "changed code"),
    "reward": ("reward", "changed code"),
    "tools": ("tools", "changed code"),
    "system_prompt": ("system_prompt", "changed text"),
    "dataset": ("dataset.path", "changed rows"),
    "eval_dataset": ("eval_dataset.path", "changed rows"),
}


def compare(runs: Sequence[ViewedRun]) -> dict[str, Any]:
    """Return every setting of these runs as a row of texts; None where a run does not have it.

    What is not known of a run is no difference: only runs that have settings, hashes or a record of
    their start are compared in these.
    """
    rows: list[dict[str, Any]] = []

    def add_row(
        group: str, name: str, values: list[str | None], is_known: list[bool], note: str = ""
    ) -> None:
        known = {value for value, has_it in zip(values, is_known, strict=True) if has_it}
        differs = len(known) > 1
        row = {"group": group, "name": name, "values": values, "differs": differs}
        rows.append({**row, "note": note if differs else ""})

    settings = [dict(flattened(run.config())) for run in runs]
    for name in dict.fromkeys(name for one in settings for name in one):
        if name not in _NOT_COMPARED:
            add_row("setting", name, [one.get(name) for one in settings], list(map(bool, settings)))
    named_otherwise = {row["name"] for row in rows if row["differs"]}

    hashes = [run.facts("identity") for run in runs]
    for name in dict.fromkeys(name for one in hashes for name in one):
        setting, note = _HASHED.get(name, (name, ""))
        if not note:  # in a mix it is named "environment of maze"
            note = _HASHED.get(name.partition(" of ")[0], (name, "changed"))[1]
        if setting not in named_otherwise:  # another reward function has other code anyway
            texts = [None if (one := known.get(name)) is None else str(one)[:8] for known in hashes]
            add_row("code", name, texts, [text is not None for text in texts], note)

    starts = [dict(flattened(run.facts("provenance"))) for run in runs]
    for name in dict.fromkeys(name for one in starts for name in one):
        if name != "started":  # the table of runs shows the time
            add_row("start", name, [one.get(name) for one in starts], list(map(bool, starts)))
    return {
        "runs": [run.key for run in runs],
        "rows": rows,
        "without_settings": [run.key for run in runs if not run.config()],
    }


def flattened(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield settings as texts by their full names: ("training.learning_rate", "0.001").

    >>> list(flattened({"reward": [{"weight": 2}], "tools": ["a.py:b"], "parser": None}))
    [('reward[0].weight', '2'), ('tools', '["a.py:b"]'), ('parser', 'null')]
    """
    if isinstance(value, Mapping) and (value or not name):
        for inner, part in value.items():
            yield from flattened(part, f"{name}.{inner}" if name else str(inner))
    elif isinstance(value, list) and any(isinstance(one, Mapping) for one in value):
        for number, part in enumerate(value):
            yield from flattened(part, f"{name}[{number}]")
    else:
        yield name, value if isinstance(value, str) else json.dumps(value, default=str)
