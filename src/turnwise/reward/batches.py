"""Reward functions of a whole batch, as VERL has them: how to tell them, and what they take."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from turnwise.errors import ConfigError
from turnwise.reward.function import RewardFn, RewardFunction

BATCH_TYPES = ("DataProto", "RewardBatch")
"""A function whose first argument is annotated as one of these scores a whole batch."""


class Columns:
    """Columns by name, all with one entry a row. Its length is the number of rows, not of columns.

    >>> columns = Columns({"state": ["door", "wall"], "depth": [3, 4]})
    >>> len(columns), columns["state"][1], "depth" in columns
    (2, 'wall', True)
    """

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self._columns = dict(columns)

    def __getitem__(self, name: str) -> Any:
        return self._columns[name]

    def __setitem__(self, name: str, column: Any) -> None:
        self._columns[name] = column

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), ()))

    def get(self, name: str, default: Any = None) -> Any:
        return self._columns.get(name, default)

    def keys(self) -> Iterable[str]:
        return self._columns.keys()

    def items(self) -> Iterable[tuple[str, Any]]:
        return self._columns.items()


@dataclass(frozen=True)
class RewardRow:
    """One row of a batch: the same names, each with its own entry."""

    batch: Mapping[str, Any]
    non_tensor_batch: Mapping[str, Any]


@dataclass
class RewardBatch:
    """A batch of episodes in the layout of VERL's `DataProto`, for machines without VERL.

    `batch["responses"]` are the token ids [B, T] of what was sampled and put in between, padded at
    the end; a dataset's own columns stand beside them, such as `batch["state"]`.

    >>> data = RewardBatch(Columns({"state": ["door", "wall"]}))
    >>> len(data), data[1].batch["state"]
    (2, 'wall')
    """

    batch: Columns
    """Tensors [B, ...], and the columns of the dataset as lists."""
    non_tensor_batch: dict[str, Any] = field(default_factory=dict)
    """Objects, one a row: `response_texts`, `trajectory`, `extra_info`, the dataset's columns."""
    meta_info: dict[str, Any] = field(default_factory=dict)
    """Whatever is said about the batch as a whole."""

    def __len__(self) -> int:
        return len(self.batch)

    def __getitem__(self, row: int) -> RewardRow:
        row = range(len(self))[row]
        return RewardRow(
            {name: column[row] for name, column in self.batch.items()},
            {name: column[row] for name, column in self.non_tensor_batch.items()},
        )

    def __iter__(self) -> Iterator[RewardRow]:
        return map(self.__getitem__, range(len(self)))

    def as_data_proto(self, data_proto: Any) -> Any:
        """Return the same batch as VERL's `DataProto`, which is the class that is given.

        Columns that are no tensors stay readable row by row, as `batch["state"][0]`.
        """
        import torch  # both come with VERL
        from tensordict import NonTensorData, NonTensorStack

        tensors = {k: v for k, v in self.batch.items() if isinstance(v, torch.Tensor)}
        proto = data_proto.from_dict(
            tensors=tensors, non_tensors=dict(self.non_tensor_batch), meta_info=self.meta_info
        )
        for name, column in self.batch.items():
            if name not in tensors:
                proto.batch[name] = NonTensorStack(*(NonTensorData(data=value) for value in column))
        return proto


def is_data_proto(kind: type | str) -> TypeGuard[type]:
    """Return whether a class is VERL's own `DataProto`, without importing VERL."""
    return isinstance(kind, type) and kind.__module__.split(".")[0] == "verl"


def batch_type(function: RewardFn | None) -> type | str | None:
    """What a reward function of batches is to be called with; None: it scores one episode.

    It is found in the annotation of the first argument: the class, or its name where the name
    cannot be looked up.

    >>> def score(data: RewardBatch) -> list[float]: ...
    >>> batch_type(score), batch_type(lambda trajectory: 1.0)
    (<class 'turnwise.reward.batches.RewardBatch'>, None)
    """
    if function is None or isinstance(function, type) or not callable(function):
        return None
    try:
        parameters = _parameters(function)
    except ValueError:  # some functions written in C do not tell
        return None
    kind = parameters[0].annotation if parameters else None
    if isinstance(kind, str):
        name = kind.strip("'\" ").rpartition(".")[2]
    else:
        name = getattr(kind, "__name__", "")
    return kind if name in BATCH_TYPES else None


def of_one_episode(function: RewardFn | None) -> RewardFunction:
    """A reward function for single episodes; one of whole batches is refused."""
    if batch_type(function) is not None:
        raise ConfigError(
            "this reward function scores whole batches: its argument is a DataProto or a "
            "RewardBatch. Give it to a trainer or an EpisodeCollector, which make one, or write a "
            "function of (trajectory)."
        )
    return RewardFunction.of(function)


def _parameters(function: RewardFn) -> list[inspect.Parameter]:
    try:
        signature = inspect.signature(function, eval_str=True)
    except Exception:  # a name that only type checkers can look up, such as one of VERL's
        signature = inspect.signature(function)
    return list(signature.parameters.values())
