"""Forwards of modules that are replaced only inside a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch

Replacement: TypeAlias = tuple[Any, Callable[[torch.Tensor], torch.Tensor]]
"""A module, and the forward that replaces its own."""


@contextmanager
def replaced_forwards(replacements: Sequence[Replacement]) -> Iterator[None]:
    """Replace the forwards of these modules inside the block."""
    before = [vars(module).get("forward") for module, _ in replacements]
    try:
        for module, forward in replacements:
            module.forward = forward
        yield
    finally:
        for (module, _), outer in zip(replacements, before, strict=True):
            del module.forward
            if outer is not None:  # a replacement around this one
                module.forward = outer
