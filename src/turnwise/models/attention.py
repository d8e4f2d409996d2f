"""Selects the attention that the layers of a model use, by its name in transformers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


def configs_of(model: Any) -> list[Any]:
    """Return all configs that modules of a model read."""
    from transformers import PreTrainedConfig

    found = {}
    for module in model.modules():
        config = getattr(module, "config", None)
        if isinstance(config, PreTrainedConfig):
            found[id(config)] = config
    return list(found.values())


@contextmanager
def attention_named(configs: Sequence[Any], name: str) -> Iterator[None]:
    """Make a model use the attention of that name inside the block."""
    before = [config._attn_implementation for config in configs]
    try:
        for config in configs:
            config._attn_implementation = name
        yield
    finally:
        for config, implementation in zip(configs, before, strict=True):
            config._attn_implementation = implementation
