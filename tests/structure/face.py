"""The public face as text: each name with its signature, its public methods and its values.

Run it to write `face.txt` anew, when a change of the face is meant:

    PYTHONPATH=src python tests/structure/face.py
"""

import dataclasses
import enum
import inspect
import re
from pathlib import Path

import turnwise

FROZEN = Path(__file__).with_name("face.txt")


def face():
    """Return one line for each name, method and value that users may write."""
    return [line for name in turnwise.__all__ for line in lines_of(name, getattr(turnwise, name))]


def lines_of(name, value):
    if not isinstance(value, type):
        return [f"{name}{arguments(value)}"]
    if issubclass(value, enum.Enum):
        return [f"{name}.{member.name} = {member.value!r}" for member in value]
    # What calls an exception or a protocol is not the user, and differs between Pythons.
    is_called = not (issubclass(value, BaseException) or getattr(value, "_is_protocol", False))
    first = f"{name}{arguments(value)}" if is_called else name
    return [first, *(f"{name}.{method}" for method in methods(value))]


def methods(cls):
    """Return what turnwise itself defines; a field of a dataclass is in its signature already."""
    fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    bases = [base for base in cls.__mro__ if base.__module__.startswith("turnwise.")]
    names = {name for base in bases for name in vars(base) if not name.startswith("_")}
    for name in sorted(names.difference(field.name for field in fields)):
        value = inspect.getattr_static(cls, name)
        is_method = inspect.isfunction(value) or isinstance(value, classmethod | staticmethod)
        yield f"{name}{arguments(getattr(cls, name))}" if is_method else name


def arguments(function):
    """Return the signature without its types, which mypy checks, and without addresses."""
    signature = inspect.signature(function)
    plain = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
        if parameter.name != "self"
    ]
    text = str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))
    return re.sub(r" at 0x[0-9a-f]+", "", text)


if __name__ == "__main__":
    FROZEN.write_text("\n".join(face()) + "\n")
