"""Tensors as NumPy bytes, which the processes of a node read from the object store in place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import torch

from turnwise.learner.tensor_file import LazyTensors

Arrays: TypeAlias = dict[str, tuple[str, tuple[int, ...], np.ndarray[Any, np.dtype[np.uint8]]]]
"""By name: dtype, shape and bytes. NumPy does not have all of torch's dtypes."""


def to_arrays(tensors: Mapping[str, torch.Tensor]) -> Arrays:
    """Return views of CPU tensors, copies of others; Ray copies them into the store.

    >>> from_arrays(to_arrays({"w": torch.tensor([[1.5, 2.0]], dtype=torch.bfloat16)}))
    {'w': tensor([[1.5000, 2.0000]], dtype=torch.bfloat16)}
    """
    arrays: Arrays = {}
    for name, tensor in tensors.items():
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        kind = str(tensor.dtype).removeprefix("torch.")
        arrays[name] = (kind, tuple(tensor.shape), flat.view(torch.uint8).numpy())
    return arrays


def from_arrays(arrays: Arrays) -> dict[str, torch.Tensor]:
    """Return new tensors: arrays in the store are read-only."""
    return dict(lazy_tensors(arrays))


def lazy_tensors(arrays: Arrays) -> LazyTensors:
    """Return the tensors, each copied when it is read."""

    def read(name: str) -> torch.Tensor:
        kind, shape, data = arrays[name]
        tensor = torch.empty(shape, dtype=getattr(torch, kind))
        if data.size:  # an empty array comes back without a stride
            np.copyto(tensor.view(-1).view(torch.uint8).numpy(), data)
        return tensor

    return LazyTensors(arrays, read)
