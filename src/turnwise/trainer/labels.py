"""Names for objects of a user's script: an import path, or a label of what cannot be imported."""

from __future__ import annotations

import sys
from typing import Any

from turnwise.algo.records import AdvantageEstimator, PolicyLoss
from turnwise.user_code import fingerprint, reference_to

_OBJECT = "<object>"


def callable_label(function: Any) -> str:
    """Return the name of a function; a callable object, or a method of one, gets a label."""
    is_object = not isinstance(function, type) and not hasattr(function, "__code__")
    return object_label(function) if is_object else reference_to(function).label


def object_label(value: object) -> str:
    """Return a label for an object that cannot be imported."""
    return f"{_OBJECT}:{type(value).__qualname__}"


def algorithm_label(record: AdvantageEstimator | PolicyLoss) -> str:
    """Return the name of a user's estimator or loss, or of the global record that declares it."""
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
    """Whether a label names an object that a later command cannot import."""
    return label.startswith("<") and ">:" in label


def is_default_instance(value: object) -> bool:
    """Whether the class without arguments makes an equal object.

    Objects of installed packages are never compared: their fingerprint leaves their state out.
    """
    reference = reference_to(value)
    if reference.target is None or reference.origin == "installed":
        return False
    try:
        other = type(value)()
        if reference.origin == "turnwise":
            return bool(vars(other) == vars(value))
        return fingerprint(other) == fingerprint(value)
    except Exception:  # the user's constructor takes arguments
        return False
