"""Limits what a chat template may compute: a single operator cannot fill the memory."""

from __future__ import annotations

import importlib
import re
from functools import cache
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment

MOST_CHARACTERS = 10_000_000
"""Longest text or list that an operator may make; long conversations have a tenth of it."""
_MOST_BITS = 4096
_WIDTH = re.compile(r"\d{1,20}")


class TooLarge(Exception):
    """An operator of a template would make a text, list or number beyond the limits."""


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox of chat templates, with limits for the results of operators and methods.

    Intercepted operators are not constant-folded when a template is compiled either.
    """

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        _check(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        # For `ljust`, `center` and the like; jinja itself limits ranges.
        for argument in (*args, *kwargs.values()):
            if isinstance(argument, int) and argument > MOST_CHARACTERS:
                raise TooLarge(f"it calls a method with {argument:,}")
        return super().call(__context, __obj, *args, **kwargs)


def _check(operator: str, left: Any, right: Any) -> None:
    if operator == "**" and isinstance(left, int) and isinstance(right, int):
        size = left.bit_length() * max(right, 0)
        if size > _MOST_BITS:
            raise TooLarge(f"it computes a number of {size:,} bits")
    elif operator == "*":
        if isinstance(left, int) and isinstance(right, int):
            if left.bit_length() + right.bit_length() > _MOST_BITS:
                raise TooLarge("it computes a number of thousands of digits")
        else:
            _check_length(_length(left) * _factor(right) + _length(right) * _factor(left))
    elif operator == "+":
        _check_length(_length(left) + _length(right))
    elif operator == "%" and isinstance(left, str):
        given = right if isinstance(right, tuple) else (right,)
        widths = [int(width) for width in _WIDTH.findall(left)]
        widths += [width for width in given if "*" in left and isinstance(width, int)]
        _check_length(len(left) + sum(widths))


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes | list | tuple) else 0


def _factor(value: Any) -> int:
    return max(value, 0) if isinstance(value, int) else 0


def _check_length(length: int) -> None:
    if length > MOST_CHARACTERS:
        raise TooLarge(f"it makes a text or a list of length {length:,}")


@cache
def bound_templates() -> None:
    """Make transformers compile chat templates in the bounded sandbox, in this process."""
    module: Any = importlib.import_module("transformers.utils.chat_template_utils")
    if getattr(module, "ImmutableSandboxedEnvironment", None) is ImmutableSandboxedEnvironment:
        module.ImmutableSandboxedEnvironment = BoundedEnvironment
        module._compile_jinja_template.cache_clear()  # templates that were compiled without it
