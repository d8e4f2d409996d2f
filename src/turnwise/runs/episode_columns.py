"""Packs the tokens of many episodes into a few long columns, and unpacks them.

The streams of all agents of all episodes are concatenated. Columns about sampled tokens have values
for those only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from turnwise.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from turnwise.chat import TokenStream

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Columns: TypeAlias = "Mapping[str, torch.Tensor | Array]"
"""By name, [rows, tokens]: a row is one agent of one episode, padded on the right."""

# Three digits are enough for display; these are never used for training again.
HALF_PRECISION = ("values", "advantages", "returns")

_SAMPLER = "sampler_log_probs"
_LEARNER = "log_probs"
_LEARNER_BITS = "log_probs_xor"
_PLACES = ("ids", "mask", "offsets")


class TokenColumns:
    """The tokens of one agent in one episode."""

    def __init__(self, ids: Array, mask: Array, columns: dict[str, Array]) -> None:
        self.ids = ids
        self.mask = mask
        self.columns = columns


def check_columns(streams: Sequence[TokenStream], columns: Columns) -> None:
    """Raise `ConfigError` unless the columns have one row per stream and are wide enough."""
    width = max((len(stream) for stream in streams), default=0)
    for name, column in columns.items():
        shape = tuple(column.shape)
        if name in (*_PLACES, _SAMPLER, _LEARNER_BITS):
            raise ConfigError(f"a column is named {name!r}, which is taken from the episodes")
        if len(shape) != 2 or shape[0] != len(streams) or shape[1] < width:
            raise ConfigError(
                f"the column {name!r} got shape {shape}, expected [{len(streams)}, {width}]: a row "
                "for each agent of each episode, as long as the longest"
            )


def pack(streams: Sequence[TokenStream], columns: Columns) -> dict[str, Array]:
    """Return the columns to write: `ids`, `mask` as bits, `offsets`, and others with one number
    per sampled token."""
    lengths = np.array([len(stream) for stream in streams], np.int64)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    ids = np.fromiter(chain.from_iterable(s.ids for s in streams), np.int64, int(offsets[-1]))
    mask = np.fromiter(chain.from_iterable(s.mask for s in streams), np.bool_, int(offsets[-1]))
    sampler = np.fromiter(
        chain.from_iterable(s.log_probs for s in streams), np.float32, int(offsets[-1])
    )[mask]
    row = np.repeat(np.arange(len(streams)), lengths)[mask]
    place = (np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths))[mask]
    packed = {
        "ids": ids.astype(np.min_scalar_type(int(ids.max(initial=0)))),
        "mask": np.packbits(mask),
        "offsets": offsets,
        _SAMPLER: sampler,
    }
    for name, column in columns.items():
        values = _numpy(column)[row, place]
        if name == _LEARNER:
            packed[_LEARNER_BITS] = values.view(np.uint32) ^ sampler.view(np.uint32)
        else:
            packed[name] = _halved(values) if name in HALF_PRECISION else values
    return packed


def unpack(packed: Mapping[str, Array], place: str = "the columns") -> list[TokenColumns]:
    """Return the rows in order; inconsistent columns raise `ConfigError` about `place`."""
    _check_packed(packed, place)
    ids, offsets = packed["ids"], packed["offsets"].astype(np.int64)
    mask = np.unpackbits(packed["mask"], count=len(ids)).astype(np.bool_)
    columns = {name: array for name, array in packed.items() if name not in _PLACES}
    if (bits := columns.pop(_LEARNER_BITS, None)) is not None:
        # Both are nearly equal, so that the XOR of their bits compresses well.
        columns[_LEARNER] = (bits ^ columns[_SAMPLER].view(np.uint32)).view(np.float32)
    bounds = list(pairwise(offsets.tolist()))
    num_sampled = [int(np.count_nonzero(mask[start:end])) for start, end in bounds]
    for name, column in columns.items():
        if column.shape != (sum(num_sampled),):
            raise ConfigError(
                f"{place}: {name} has shape {column.shape}, expected ({sum(num_sampled)},): one "
                "number for each sampled token"
            )
    sampled = pairwise(accumulate(num_sampled, initial=0))
    return [
        TokenColumns(
            ids[start:end],
            mask[start:end],
            {name: column[first:last] for name, column in columns.items()},
        )
        for (start, end), (first, last) in zip(bounds, sampled, strict=True)
    ]


def _check_packed(packed: Mapping[str, Array], place: str) -> None:
    missing = [name for name in (*_PLACES, _SAMPLER) if name not in packed]
    if missing:
        raise ConfigError(f"{place} has no {missing[0]}, expected a column of that name")
    ids, mask, offsets = (packed[name] for name in _PLACES)
    is_sound = (
        (ids.ndim, mask.ndim, offsets.ndim) == (1, 1, 1)
        and ids.dtype.kind in "ui"
        and offsets.dtype.kind in "ui"
        and mask.dtype == np.uint8
        and len(mask) == -(-len(ids) // 8)
        and len(offsets) > 0
        and offsets[0] == 0
        and offsets[-1] == len(ids)
        and bool((offsets[1:] >= offsets[:-1]).all())
    )
    if not is_sound:
        raise ConfigError(f"{place}: ids, mask and offsets do not fit together")
    for name in (_SAMPLER, _LEARNER_BITS):
        kind = np.float32 if name == _SAMPLER else np.uint32
        if name in packed and (packed[name].dtype != kind or packed[name].ndim != 1):
            raise ConfigError(
                f"{place}: {name} is of {packed[name].dtype}, expected {kind.__name__}"
            )
    if _LEARNER_BITS in packed and packed[_LEARNER_BITS].shape != packed[_SAMPLER].shape:
        raise ConfigError(f"{place}: {_LEARNER_BITS} and {_SAMPLER} are not equally long")


def _numpy(column: torch.Tensor | Array) -> Array:
    if isinstance(column, np.ndarray):
        return column.astype(np.float32)
    return np.asarray(column.detach().float().cpu().numpy())


def _halved(values: Array) -> Array:
    """Return the values as float16, unless one is too large for it."""
    with np.errstate(over="ignore"):
        halves = values.astype(np.float16)
    return halves if np.array_equal(np.isinf(halves), np.isinf(values)) else values
