"""Runs of versions that did not record the components that a script passed to the trainer.

Their `config.yaml` has only the settings. The environment, reward function, tools and dataset of a
script are not recorded, except for the environment's name in `run.json`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnwise.config import ConfigStore
from turnwise.runs.run_folder import RunFolder

NOT_RECORDED = (
    "was started by a version that did not record a reward function, tools, a parser, a system "
    "prompt or a dataset that a script passed"
)
_FROM_SCRIPT = (
    *("environment.", "environments", "reward", "tools", "parser", "system_prompt", "dataset."),
    *("eval_dataset.", "limits."),
)
"""Settings and sections in which a run now records the components that a script passed."""


def is_older(status: Mapping[str, Any]) -> bool:
    """Return whether a run is of such a version; `status` is its `run.json`."""
    return bool(status) and "code" not in status and "provenance" not in status


def restore_older(config: ConfigStore, run: Path) -> bool:
    """Mark the environment of an older run as not importable; return whether the run is older.

    Otherwise the default environment of the settings would be played instead of the script's.
    """
    status = RunFolder(run).facts
    played = status.get("environment")
    if not is_older(status):
        return False
    is_single = config.environments is None
    own = config.environment
    if is_single and isinstance(played, str) and not is_same_environment(own.name, played):
        own.name = f"<script>:{played.rpartition(':')[2]}"
    return True


def is_same_environment(before: str | None, environment: str) -> bool:
    """Return whether two names can mean the same class; hashes tell whether its code changed."""
    return before is not None and before.rpartition(":")[2] == environment.rpartition(":")[2]


def with_what_is_given(before: ConfigStore, now: ConfigStore) -> ConfigStore:
    """Return the settings of such a run, with the components of now that it did not record.

    So a script that passes an environment and a dataset to the trainer can resume its run.
    """
    found, default, given = copy.deepcopy(before), dict(ConfigStore().settings()), now.settings()
    known = dict(before.settings())
    for name, value in given:
        if name.startswith(_FROM_SCRIPT) and known[name] == default[name]:
            section, _, field = name.rpartition(".")
            setattr(getattr(found, section) if section else found, field, value)
    return found
