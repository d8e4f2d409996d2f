"""The settings of several runs side by side: which of them differ, and whose code was changed."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from turnwise.view.runs import ViewedRun

# A run's name is above its column, the table of runs shows when it started, and its folder makes no
# difference.
_NOT_COMPARED = {"checkpoint.run_name", "checkpoint.output_dir", "started"}
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
    facts: dict[str, list[Mapping[str, Any]]] = {
        "setting": [dict(flattened(run.config())) for run in runs],
        "code": [run.facts("identity") for run in runs],
        "start": [dict(flattened(run.facts("provenance"))) for run in runs],
    }
    rows: list[dict[str, Any]] = []
    differing: set[str] = set()
    for group, of_runs in facts.items():
        for name in dict.fromkeys(name for one in of_runs for name in one):
            setting, _ = _HASHED.get(name, (name, ""))
            if name in _NOT_COMPARED or (group == "code" and setting in differing):
                continue  # another reward function has other code anyway
            values = [one.get(name) for one in of_runs]
            if group == "code":
                values = [None if value is None else str(value)[:8] for value in values]
                known = set(values) - {None}
            else:
                known = {value for value, one in zip(values, of_runs, strict=True) if one}
            row = {"group": group, "name": name, "values": values, "differs": len(known) > 1}
            note = ""
            if row["differs"]:
                differing.add(name)
                # In a mix it is named "environment of maze".
                _, note = _HASHED.get(name.partition(" of ")[0], (name, "changed"))
            rows.append({**row, "note": note if group == "code" else ""})
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
