"""Finds out what attention each layer of a model needs, from one short forward.

A model's config does not say it reliably: a sliding window is in the config of one family, in the
attention module of another, and applies to all layers or to some. What counts is the mask that the
model makes for each layer. transformers passes it to attention as a function of two positions, so
that it can be compared with a window at any length without computing as many tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from turnwise.models.attention import attention_named, configs_of
from turnwise.models.probing import PROBE_ERRORS, UnsupportedModel, is_out_of_memory

_NAME = "turnwise_probe"
"""The name of the probe in transformers, as an attention and as a mask function."""
_HARMLESS = {
    "cache_position",
    "dropout",
    "is_causal",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "position_ids",
    "return_dict",
    "scaling",
    "sliding_window",  # the mask shows it
    "use_cache",
}
"""Arguments of attention that packed attention need not handle."""
_LONGEST = 2**20
"""Positions up to which masks are checked."""


_NOT_IMPLEMENTED = {"softcap": "soft-capped scores", "s_aux": "sinks"}
"""What attention may be asked for, in words."""
HINT = " Use backend='transformers'."


def unsupported(model: Any, reason: object) -> UnsupportedModel:
    return UnsupportedModel(
        f"{type(model).__name__} does not run on the local engine: {reason}.{HINT}"
    )


class _ProbeError(Exception):
    """Why a layer's attention is not supported."""


@dataclass(frozen=True)
class LayerAttention:
    """The attention that one layer needs."""

    num_kv_heads: int
    width: int
    """Width of a key or a value, whichever is larger."""
    window: int | None
    """Tokens that a token attends to, itself included; None: all before it."""


@torch.no_grad()
def probe_layers(model: Any, context_length: int) -> list[LayerAttention]:
    """Return the attention that each layer of a model needs, within a context of so many tokens.

    Raises `UnsupportedModel` if it is neither causal attention over all tokens nor a sliding
    window, or if a layer keeps another state than keys and values.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    if getattr(model, "_is_stateful", False):
        raise unsupported(model, "its layers keep a recurrent state, not only a cache")
    AttentionInterface.register(_NAME, _record)
    AttentionMaskInterface.register(_NAME, _keep_mask)
    config = model.config.get_text_config()
    layers: dict[int, LayerAttention] = {}
    length = min(context_length, _LONGEST)
    ids = torch.arange(4, device=model.device)[None] % model.get_input_embeddings().num_embeddings
    try:
        with attention_named(configs_of(model), _NAME):
            model(
                input_ids=ids,
                position_ids=torch.arange(4, device=model.device)[None],
                use_cache=False,
                turnwise_layers=(layers, length),
            )
        _check_all_there(layers, config.num_hidden_layers)
    except _ProbeError as error:
        raise unsupported(model, error) from None
    except PROBE_ERRORS as error:
        if is_out_of_memory(error):
            raise
        # What the probe ran into says nothing to a user; the cause has it.
        raise unsupported(
            model, "its attention cannot be replaced through transformers' attention interface"
        ) from error
    return [layers[index] for index in range(len(layers))]


def _check_all_there(layers: dict[int, LayerAttention], number: int) -> None:
    if missing := [index for index in range(number) if index not in layers]:
        raise _ProbeError(
            f"{len(missing)} of its {number} layers (the first is layer {missing[0]}) have no "
            "attention that can be replaced"
        )
    if extra := [index for index in layers if index >= number]:
        raise _ProbeError(f"its attention layers have the indices up to {max(extra)}, of {number}")
    if len({(layer.num_kv_heads, layer.width) for layer in layers.values()}) > 1:
        raise _ProbeError("its layers differ in the number or width of their key and value heads")


@dataclass(frozen=True)
class _Mask:
    """A mask as a function: which position attends to which."""

    attends: Callable[..., torch.Tensor]


def _keep_mask(*_: Any, mask_function: Callable[..., torch.Tensor], **__: Any) -> _Mask:
    return _Mask(mask_function)


def _record(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: object,
    *,
    turnwise_layers: tuple[dict[int, LayerAttention], int],
    **asked: Any,
) -> tuple[torch.Tensor, None]:
    """Attention with transformers' signature that only records what it is asked for."""
    layers, length = turnwise_layers
    for name, value_asked in asked.items():
        if name not in _HARMLESS and value_asked is not None:
            what = _NOT_IMPLEMENTED.get(name, f"the argument {name!r}")
            raise _ProbeError(f"its attention has {what}, which the engine does not implement")
    if asked.get("is_causal") is False or not getattr(module, "is_causal", True):
        raise _ProbeError("its attention is not causal")
    index = module.layer_idx
    if index in layers:
        raise _ProbeError(f"layer {index} attends more than once")
    window = None
    if isinstance(attention_mask, _Mask):
        window = _window_of(attention_mask.attends, length)
    elif attention_mask is not None:
        raise _ProbeError("its attention has a mask or bias of its own")
    width = max(key.shape[-1], value.shape[-1])
    layers[index] = LayerAttention(key.shape[1], width, window)
    return query.new_zeros(*query.shape[:1], query.shape[2], query.shape[1], value.shape[-1]), None


def _window_of(attends: Callable[..., torch.Tensor], length: int) -> int | None:
    """Return the sliding window of a mask; None: all earlier tokens within `length`.

    It is measured at the last position, and checked at positions on both sides of it.
    """
    positions = torch.arange(length)

    def visible_from(position: int) -> torch.Tensor:
        zero = torch.tensor(0)
        row = attends(zero, zero, torch.tensor(position), positions)
        return row.expand(length) if row.ndim == 0 else row

    window = int(visible_from(length - 1).sum())
    around = {window + i for i in (-2, -1, 0, 1, 2)} | {2 * window, 2 * window + 1, 3 * window}
    spread = set(torch.linspace(0, length - 1, 32).long().tolist())
    for position in sorted(around | spread | {0, 1, length - 1}):
        if 0 <= position < length:
            expected = (positions <= position) & (positions > position - window)
            if not torch.equal(visible_from(position), expected):
                raise _ProbeError("its mask is neither causal nor a sliding window")
    return window if window < length else None
