"""Names for what a user's script made: a target to import, or a label that says what is lost."""

from __future__ import annotations

import sys
from typing import Any

from turnwise.algo.records import AdvantageEstimator, PolicyLoss
from turnwise.user_code import fingerprint, reference_to

_OBJECT = "<object>"


def callable_label(function: Any) -> str:
    """Return the name of a function; an object that is called, or a method of one, has none."""
    is_object = not isinstance(function, type) and not hasattr(function, "__code__")
    return object_label(function) if is_object else reference_to(function).label


def object_label(value: object) -> str:
    """Return a label for an object that no name makes again."""
    return f"{_OBJECT}:{type(value).__qualname__}"


def algorithm_label(record: AdvantageEstimator | PolicyLoss) -> str:
    """Return the name of a user's estimator or loss: of the record if it needs one, as a global."""
    function: Any = record.function
    if record == type(record)(function):
        return callable_label(function)
    target = reference_to(function).target
    module = sys.modules.get(getattr(function, "__module__", ""))
    names = [name for name, value in vars(module).items() if value is record] if module else []
    if target is None or not names:
        return object_label(record)
    return f"{target.rpartition(':')[0]}:{names[0]}"


def is_lost(label: str) -> bool:
    """Whether a label names something that a later command cannot import."""
    return label.startswith("<") and ">:" in label


def is_made_alone(value: object) -> bool:
    """Whether the class without arguments makes the same object again.

    What the objects of installed packages hold is not in their fingerprint: they cannot be told.
    """
    reference = reference_to(value)
    if reference.target is None or reference.origin == "installed":
        return False
    try:
        other = type(value)()
        if reference.origin == "turnwise":
            return bool(vars(other) == vars(value))
        return fingerprint(other) == fingerprint(value)
    except Exception:  # the user's constructor wants arguments
        return False
