"""What attention each layer of a model needs from the local engine."""

from __future__ import annotations

from typing import Any

from turnwise.models.attention_probe import AttentionCall, UnsupportedAttention, probe_attention
from turnwise.models.probing import UnsupportedModel

HINT = " Use backend='transformers'."


def unsupported(model: Any, reason: object) -> UnsupportedModel:
    return UnsupportedModel(
        f"{type(model).__name__} does not run on the local engine: {reason}.{HINT}"
    )


def probe_layers(model: Any, context_length: int) -> list[AttentionCall]:
    """Return the attention that each layer of a model needs, within a context of so many tokens.

    Raises `UnsupportedModel` unless each layer attends once, with keys and values of one shape,
    and tokens reach each other in no other way.
    """
    try:
        calls = probe_attention(model, context_length)
    except UnsupportedAttention as error:
        raise unsupported(model, error) from error.__cause__
    number = model.config.get_text_config().num_hidden_layers
    layers = sorted(call.layer for call in calls)
    if missing := [index for index in range(number) if index not in layers]:
        raise unsupported(
            model,
            f"{len(missing)} of its {number} layers (the first is layer {missing[0]}) have no "
            "attention that can be replaced",
        )
    if layers != list(range(number)):
        raise unsupported(model, f"its {number} layers attend {len(layers)} times")
    if len({(call.num_kv_heads, call.width) for call in calls}) > 1:
        raise unsupported(
            model, "its layers differ in the number or width of their key and value heads"
        )
    return sorted(calls, key=lambda call: call.layer)
