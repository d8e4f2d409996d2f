"""What travels between the processes of a run: weights, the model's source, and log lines."""

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from turnwise.config import ConfigStore
from turnwise.learner.tensor_file import LazyTensors
from turnwise.trainer.state import load_configured_model, load_configured_model_in_parts

Arrays: TypeAlias = dict[str, tuple[str, tuple[int, ...], np.ndarray[Any, np.dtype[np.uint8]]]]
"""By name: dtype, shape and bytes, which the processes of a machine read from the object store in
place. NumPy does not have all of torch's dtypes."""
LogLines: TypeAlias = list[tuple[int, str]]
"""Level and text of each line."""

_LOG = logging.getLogger("turnwise")
_MAX_LINES = 1000


def to_arrays(tensors: Mapping[str, torch.Tensor]) -> Arrays:
    """Return views of CPU tensors, copies of others; Ray copies them into the store.

    >>> dict(lazy_tensors(to_arrays({"w": torch.tensor([[1.5, 2.0]], dtype=torch.bfloat16)})))
    {'w': tensor([[1.5000, 2.0000]], dtype=torch.bfloat16)}
    """
    arrays: Arrays = {}
    for name, tensor in tensors.items():
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        kind = str(tensor.dtype).removeprefix("torch.")
        arrays[name] = (kind, tuple(tensor.shape), flat.view(torch.uint8).numpy())
    return arrays


def lazy_tensors(arrays: Arrays) -> LazyTensors:
    """Return the tensors, each copied when it is read: arrays in the store are read-only."""

    def read(name: str) -> torch.Tensor:
        kind, shape, data = arrays[name]
        tensor = torch.empty(shape, dtype=getattr(torch, kind))
        if data.size:  # an empty array comes back without a stride
            np.copyto(tensor.view(-1).view(torch.uint8).numpy(), data)
        return tensor

    return LazyTensors(arrays, read)


@dataclass(frozen=True)
class Weights:
    """A version of the weights, and the object references of its shards.

    The references are in a tuple so that Ray does not fetch them with every call.
    """

    version: int
    objects: tuple[Any, ...]
    number: int = 0
    """Which ones are newer: versions start again from a checkpoint's."""


@dataclass(frozen=True)
class ModelSource:
    """The model that a worker loads: a user's own, or that of the settings."""

    config: ConfigStore
    model: Any = None

    def load(self, *, in_parts: bool = False) -> Any:
        """Return the model on the device of this process; `in_parts` for one that is sharded."""
        if self.model is not None:
            return self.model.to("cuda" if torch.cuda.is_available() else "cpu")
        if in_parts:
            return load_configured_model_in_parts(self.config)
        return load_configured_model(self.config).model


class WorkerLog(logging.Handler):
    """Keeps the newest log lines of this process until they are sent to the driver."""

    def __init__(self, level: str) -> None:
        super().__init__()
        self._lines = deque[tuple[int, str]](maxlen=_MAX_LINES)
        _LOG.addHandler(self)
        _LOG.setLevel(level.upper())

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append((record.levelno, record.getMessage()))

    def take(self) -> LogLines:
        """Return the lines that were not taken yet."""
        lines = []
        while self._lines:
            lines.append(self._lines.popleft())
        return lines


def log_for(worker: str, lines: Iterable[tuple[int, str]]) -> None:
    """Log the lines of a worker in the log of the run."""
    for level, text in lines:
        _LOG.log(level, "%s: %s", worker, text)
