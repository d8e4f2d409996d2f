"""The attention of a model: selected by its name in transformers, and probed.

`probe_attention` finds out how the tokens of a model reach each other, from one short forward.

A model's config does not say it reliably: a sliding window is in the config of one family, in the
attention module of another, and applies to all layers or to some. What counts is the mask that the
model makes for each layer. transformers passes it to attention as a function of two positions, so
that it can be compared with a window at any length without computing as many tokens.

In this forward attention only records what it is asked for, and returns zeros: no token depends on
another one, unless something else than attention carries it there, such as a convolution or a
recurrent state. To see that, however small its effect is, one token begins as NaN.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from inspect import signature
from typing import Any
from weakref import WeakKeyDictionary

import torch

from turnwise.models.probing import PROBE_ERRORS, is_out_of_memory

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
    "use_cache",
}
"""Arguments of attention that packed attention need not handle."""
_LONGEST = 2**20
"""Positions up to which masks are checked."""
_NUM_TOKENS = 160
"""Tokens of the forward: more than the blocks of 128 that some layers pool."""
_POISONED = 1
"""The token that begins as NaN."""


def model_configs(model: Any) -> list[Any]:
    """Return all configs that modules of a model read."""
    from transformers import PreTrainedConfig

    configs = (getattr(module, "config", None) for module in model.modules())
    return list({id(c): c for c in configs if isinstance(c, PreTrainedConfig)}.values())


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


_LOCKS: WeakKeyDictionary[Any, AbstractContextManager[Any]] = WeakKeyDictionary()


def model_lock(model: Any) -> AbstractContextManager[Any]:
    """Return the reentrant lock of a model; that of the model inside peft's wrapper is the same.

    An engine and the learner each replace attention, and the learner also norms and MLPs, while
    they run a forward. While episodes are played during an update, these must not overlap.
    """
    unwrap = getattr(model, "get_base_model", None)
    return _LOCKS.setdefault(model if unwrap is None else unwrap(), threading.RLock())


class UnsupportedAttention(Exception):
    """Why the tokens of a model do not reach each other by packed attention alone."""


@dataclass(frozen=True)
class AttentionCall:
    """What a layer asked of attention."""

    layer: int
    num_kv_heads: int
    width: int
    """Width of a key or a value, whichever is larger."""
    window: int | None
    """Tokens that a token attends to by its mask, itself included; None: all before it."""
    given_window: int | None
    """The same by attention's argument `sliding_window`."""


@torch.no_grad()
def probe_attention(model: Any, context_length: int | None = None) -> list[AttentionCall]:
    """Return every call of attention in a forward, in order.

    Raises `UnsupportedAttention` unless tokens reach each other by causal attention alone, over all
    tokens or a sliding window, within a context of so many tokens (default: as many as it has).
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    if getattr(model, "_is_stateful", False):
        raise UnsupportedAttention("its layers keep a recurrent state, not only a cache")
    AttentionInterface.register(_NAME, _record)
    AttentionMaskInterface.register(_NAME, _mask_function)
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None) or _LONGEST
    length = min(context_length or longest, longest, _LONGEST)
    embedding = model.get_input_embeddings()
    positions = torch.arange(min(_NUM_TOKENS, length), device=model.device)[None]
    calls: list[AttentionCall] = []

    def begin_as_nan(_module: Any, _inputs: Any, embedded: torch.Tensor) -> torch.Tensor:
        return embedded.index_fill(1, torch.tensor([_POISONED], device=embedded.device), torch.nan)

    poison = embedding.register_forward_hook(begin_as_nan)
    try:
        with attention_named(model_configs(model), _NAME):
            logits = model(
                input_ids=positions % embedding.num_embeddings,
                position_ids=positions,
                use_cache=False,
                turnwise_calls=(calls, length),
            ).logits[0]
    except PROBE_ERRORS as error:
        if is_out_of_memory(error):
            raise
        # What the probe ran into says nothing to a user; the cause has it.
        raise UnsupportedAttention(
            "its attention cannot be replaced through transformers' attention interface"
        ) from error
    finally:
        poison.remove()
    if logits.isnan().any(-1).nonzero().flatten().tolist() != [_POISONED]:
        raise UnsupportedAttention(
            "its tokens reach each other in other ways than transformers' attention interface, "
            "such as a convolution, a recurrent state or an attention of its own"
        )
    if "position_ids" not in signature(model.get_decoder().forward).parameters:
        raise UnsupportedAttention("it takes no positions of tokens")
    return calls


def _mask_function(
    *_: Any, mask_function: Callable[..., torch.Tensor], **__: Any
) -> Callable[..., torch.Tensor]:
    """Return what transformers makes a mask of: which position attends to which."""
    return mask_function


def _record(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: object,
    *,
    turnwise_calls: tuple[list[AttentionCall], int],
    sliding_window: int | None = None,
    **asked: Any,
) -> tuple[torch.Tensor, None]:
    """Attention with transformers' signature that only records what it is asked for."""
    calls, length = turnwise_calls
    for name, value_asked in asked.items():
        if name not in _HARMLESS and value_asked is not None:
            raise UnsupportedAttention(f"packed attention does not implement {name!r}")
    if asked.get("is_causal") is False or not getattr(module, "is_causal", True):
        raise UnsupportedAttention("its attention is not causal")
    given_window = None if sliding_window is None or sliding_window >= length else sliding_window
    window = given_window
    if callable(attention_mask):
        window = _sliding_window(attention_mask, length)
    elif attention_mask is not None:
        raise UnsupportedAttention("its attention has a mask or bias of its own")
    width = max(key.shape[-1], value.shape[-1])
    calls.append(AttentionCall(module.layer_idx, key.shape[1], width, window, given_window))
    return query.new_zeros(*query.shape[:1], query.shape[2], query.shape[1], value.shape[-1]), None


@lru_cache(maxsize=4)  # many layers have the same mask
def _sliding_window(attends: Callable[..., torch.Tensor], length: int) -> int | None:
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
                raise UnsupportedAttention("its mask is neither causal nor a sliding window")
    return window if window < length else None
