"""When an engine's forward counts as that of the model, and when an error is not the model's."""

from __future__ import annotations

import torch

PROBE_ERRORS = (
    NotImplementedError,
    TypeError,
    ValueError,
    AttributeError,
    KeyError,
    IndexError,
    RuntimeError,
)
"""What a model raises that cannot be run in some way; see `is_out_of_memory`."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out: that tells nothing about the model."""
    kinds = (MemoryError, torch.OutOfMemoryError)
    return isinstance(error, kinds) or "can't allocate memory" in str(error)


def relative_gap(got: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest distance between logits, as a share of the largest logit."""
    got, expected = got.float(), expected.float()
    return float((got - expected).abs().max() / (1.0 + expected.abs().max()))


def largest_gap(dtype: torch.dtype) -> float:
    """The relative gap up to which two forwards differ by rounding alone."""
    return 1e-3 if dtype == torch.float32 else 0.1
