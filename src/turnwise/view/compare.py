"""The settings of several runs side by side: which of them differ, and whose code was changed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from turnwise.errors import ConfigError
from turnwise.view.runs import ViewedRun

MAX_RUNS = 24
_MAX_ROWS = 2_000
_MAX_VALUE = 1_000
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
    """Return every setting of these runs as a row of texts; None where a run does not have it."""
    if len(runs) > MAX_RUNS:
        raise ConfigError(f"runs got {len(runs)} runs, expected at most {MAX_RUNS} to compare")
    settings = [dict(flattened(run.config())) for run in runs]
    has_settings = [bool(one) for one in settings]
    rows = [
        _row("setting", name, [one.get(name) for one in settings], has_settings)
        for name in dict.fromkeys(name for one in settings for name in one)
        if name not in _NOT_COMPARED
    ]
    named_otherwise = {row["name"] for row in rows if row["differs"]}
    rows += _hash_rows(runs, named_otherwise)
    rows += _start_rows(runs)
    return {
        "runs": [run.key for run in runs],
        "rows": rows[:_MAX_ROWS],
        "without_settings": [run.key for run in runs if not run.config()],
    }


def flattened(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield settings as texts by their full names: ("training.learning_rate", "0.001").

    >>> list(flattened({"reward": [{"weight": 2}], "tools": ["a.py:b"], "parser": None}))
    [('reward[0].weight', '2'), ('tools', '["a.py:b"]'), ('parser', 'null')]
    """
    if isinstance(value, Mapping) and (value or not name):
        for inner, found in value.items():
            yield from flattened(found, f"{name}.{inner}" if name else str(inner))
    elif isinstance(value, list) and any(isinstance(one, Mapping) for one in value):
        for place, found in enumerate(value):
            yield from flattened(found, f"{name}[{place}]")
    else:
        text = value if isinstance(value, str) else json.dumps(value, default=str)
        yield name[:200], text[:_MAX_VALUE]


def _row(
    group: str, name: str, values: Sequence[str | None], counts: Sequence[bool], note: str = ""
) -> dict[str, Any]:
    """Return a row; `counts` marks the runs that have settings, as only these can differ."""
    known = {value for value, is_known in zip(values, counts, strict=True) if is_known}
    return {
        "group": group,
        "name": name,
        "values": list(values),
        "differs": len(known) > 1,
        "note": note if len(known) > 1 else "",
    }


def _hash_rows(runs: Sequence[ViewedRun], named_otherwise: set[str]) -> Iterator[dict[str, Any]]:
    """Yield what has the same name in the settings, but other code or content."""
    hashes = [run.facts("identity") for run in runs]
    for name in dict.fromkeys(name for one in hashes for name in one):
        values = [one.get(name) for one in hashes]
        setting, note = _HASHED.get(name, (name, ""))
        if not note:  # in a mix it is named "environment of maze"
            note = _HASHED.get(name.partition(" of ")[0], (name, "changed"))[1]
        if setting not in named_otherwise:  # another reward function has other code anyway
            texts = [None if value is None else str(value)[:8] for value in values]
            yield _row("code", name, texts, [value is not None for value in values], note)


def _start_rows(runs: Sequence[ViewedRun]) -> Iterator[dict[str, Any]]:
    """Yield command, commit, packages and machine; the table of runs shows the time."""
    starts = [dict(flattened(run.facts("provenance"))) for run in runs]
    names = dict.fromkeys(name for one in starts for name in one)
    for name in (one for one in names if one != "started"):
        yield _row("start", name, [one.get(name) for one in starts], [bool(one) for one in starts])
