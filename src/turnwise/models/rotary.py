"""The length up to which the rotary embedding of a model stays the same."""

from __future__ import annotations

from typing import Any


def rotary_limit(config: Any) -> int | None:
    """Return how many tokens a text may have before its rotary frequencies change; None: any number.

    transformers computes `longrope` and `dynamic` embeddings with other frequencies once a forward
    has a position beyond this, for all of its tokens: keys in a cache would be wrong, and a token's
    log-prob would depend on the texts beside it. Engines and learners keep within it instead.
    """
    config = config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or {}
    limits = []
    # Some models have one set of parameters for each type of layer.
    for parameters in (rope, *(x for x in rope.values() if isinstance(x, dict))):
        kind = parameters.get("rope_type") or ""
        if kind == "longrope":
            limits.append(int(parameters["original_max_position_embeddings"]))
        elif "dynamic" in kind:
            limits.append(int(config.max_position_embeddings))
    return min(limits, default=None)
