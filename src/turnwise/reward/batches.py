"""Batches of episodes in the layout of VERL's `DataProto`."""

from collections import UserDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard


class Columns(UserDict[str, Any]):
    """Columns by name, with one entry per row. Its length is the number of rows.

    >>> columns = Columns({"state": ["door", "wall"], "depth": [3, 4]})
    >>> len(columns), columns["state"][1], "depth" in columns
    (2, 'wall', True)
    """

    def __len__(self) -> int:
        return len(next(iter(self.data.values()), ()))


@dataclass(frozen=True)
class RewardRow:
    """One row of a batch, by the names of the columns."""

    batch: Mapping[str, Any]
    non_tensor_batch: Mapping[str, Any]


@dataclass
class RewardBatch:
    """A batch of episodes in the layout of VERL's `DataProto`, without VERL.

    `batch["responses"]` are the token ids [B, T] after the prompt, padded on the right. The columns
    of the dataset are there too, such as `batch["state"]`.

    >>> data = RewardBatch(Columns({"state": ["door", "wall"]}))
    >>> len(data), data[1].batch["state"]
    (2, 'wall')
    """

    batch: Columns
    """Tensors [B, ...], and the columns of the dataset as lists."""
    non_tensor_batch: dict[str, Any] = field(default_factory=dict)
    """Objects, one per row: `response_texts`, `trajectory`, `extra_info`, the dataset's columns."""
    meta_info: dict[str, Any] = field(default_factory=dict)
    """Facts about the batch as a whole."""

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
        """Returns the same batch as VERL's `DataProto`, the given class.

        Columns that are no tensors can be read row by row, as `batch["state"][0]`.
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
    """Whether a class is VERL's own `DataProto`, without importing VERL."""
    return isinstance(kind, type) and kind.__module__.split(".")[0] == "verl"
