"""Names for what a user's script made: a target to import, or a label that says what is lost."""

from __future__ import annotations

from typing import Any

from turnwise.user_code import fingerprint, reference_to

_OBJECT = "<object>"


def callable_label(function: Any) -> str:
    """Return the name of a function; an object that is called, or a method of one, has none."""
    is_object = not isinstance(function, type) and not hasattr(function, "__code__")
    return object_label(function) if is_object else reference_to(function).label


def object_label(value: object) -> str:
    """Return a label for an object that no name makes again."""
    return f"{_OBJECT}:{type(value).__qualname__}"


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
