"""Runs of versions that did not record what Python gave the trainer: what of them is not known.

Their `config.yaml` has the settings alone. An environment, reward function, tools or a dataset that
a script passed to the trainer stand nowhere; of the environment, `run.json` has the name.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from turnwise.config import ConfigStore

NOT_RECORDED = (
    "was begun by a version that did not record a reward function, tools, a parser, a system "
    "prompt or a dataset that a script gave"
)
_GIVEN = (
    *("environment.", "environments", "reward", "tools", "parser", "system_prompt", "dataset."),
    *("eval_dataset.", "limits."),
)
"""Settings, or sections of them, in which a run now records what Python gave."""


def is_older(status: Mapping[str, Any]) -> bool:
    """Whether a run began in such a version; `status` is its `run.json`."""
    return bool(status) and "code" not in status and "provenance" not in status


def name_lost_environment(config: ConfigStore, status: Mapping[str, Any]) -> None:
    """Name the environment that a script gave, so that nobody plays in the one of the settings.

    It cannot be imported, since nothing says where it was defined: who tries gets an error that
    names the option which supplies it.
    """
    played = status.get("environment")
    if not is_older(status) or not isinstance(played, str) or config.environments is not None:
        return
    if not is_same_environment(config.environment.name, played):
        config.environment.name = f"<script>:{played.rpartition(':')[2]}"


def is_same_environment(before: str | None, environment: str) -> bool:
    """Whether two names can mean one environment: a class, or where it is imported from.

    Whether its code is the same is seen by its hash.
    """
    return before is not None and before.rpartition(":")[2] == environment.rpartition(":")[2]


def with_what_is_given(before: ConfigStore, now: ConfigStore) -> ConfigStore:
    """The settings of such a run, with what it did not record as it is now.

    So a script that gives the trainer an environment and a dataset can resume its run.
    """
    found, default, given = copy.deepcopy(before), dict(ConfigStore().settings()), now.settings()
    known = dict(before.settings())
    for name, value in given:
        if name.startswith(_GIVEN) and known[name] == default[name]:
            section, _, field = name.rpartition(".")
            setattr(getattr(found, section) if section else found, field, value)
    return found
