"""What engines and learners need to find out whether they can compute with a model."""

from typing import Any

import torch

from turnwise.errors import TurnwiseError

PROBE_ERRORS = (TypeError, ValueError, AttributeError, LookupError, RuntimeError)
"""What a forward may raise that a model does not support; see `is_out_of_memory`."""


class UnsupportedModel(TurnwiseError, TypeError):
    """A model that the learner or the local engine cannot compute with."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out, which says nothing about the model.

    The CPU's allocator has no exception class for it.
    """
    texts = ("out of memory", "allocate memory", "alloc_failed")
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(text in str(error).lower() for text in texts)
    )


def rotary_limit(config: Any) -> int | None:
    """Return how many tokens a text may have before its rotary frequencies change; None: any.

    transformers computes `longrope` and `dynamic` embeddings with other frequencies once a forward
    has a position beyond this, for all of its tokens: keys in a cache would be wrong, and a token's
    log-prob would depend on the texts beside it. Engines and learners keep within it instead.
    """
    config = config.get_text_config()
    limits = []
    for parameters in _rope_parameters(config):
        kind = parameters.get("rope_type") or ""
        if kind == "longrope":
            limits.append(int(parameters["original_max_position_embeddings"]))
        elif "dynamic" in kind:
            limits.append(int(config.max_position_embeddings))
    return min(limits, default=None)


def rope_types(config: Any) -> set[str]:
    """Return the kinds of rotary embedding of all layers."""
    parameters = _rope_parameters(config.get_text_config())
    return {one["rope_type"] for one in parameters if one.get("rope_type")}


def _rope_parameters(config: Any) -> list[dict[str, Any]]:
    """Return the parameters of all layers; some models have others for each type of layer."""
    rope = getattr(config, "rope_parameters", None) or {}
    return [rope, *(x for x in rope.values() if isinstance(x, dict))]
