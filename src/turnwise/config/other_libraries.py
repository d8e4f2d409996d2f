"""The words of TRL, verl, verifiers, OpenRLHF and peft, answered with ours.

A user who brings a config from there gets the right name instead of one that is spelt alike. The
words are in `other_libraries.yaml`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import yaml


def answer_setting(name: str) -> str | None:
    """Return the end of an error message for a setting of another library; None for other names.

    >>> answer_setting("num_generations")
    'Here it is training.group_size.'
    """
    ours = _words()["settings"].get(name.rpartition(".")[2].lower().replace("-", "_"))
    return None if ours is None else f"Here it is {ours}."


def answer_algorithm(name: str) -> str | None:
    """Return our settings of an algorithm that has this name elsewhere; None for other names."""
    return _words()["algorithms"].get(name.lower())


@cache
def _words() -> dict[str, dict[str, str]]:
    file = Path(__file__).with_suffix(".yaml")
    words: dict[str, dict[str, str]] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return words
