"""Batches for reward functions as VERL's own `DataProto`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from verl.protocol import DataProto

from turnwise.reward import RewardBatch


def to_data_proto(data: RewardBatch) -> Any:
    """The same batch as a `DataProto`; columns that are no tensors stay readable by their row."""
    tensors = {k: v for k, v in data.batch.items() if isinstance(v, torch.Tensor)}
    proto = DataProto.from_dict(
        tensors=tensors, non_tensors=dict(data.non_tensor_batch), meta_info=data.meta_info
    )
    others = {k: v for k, v in data.batch.items() if k not in tensors}
    return with_columns(proto, others)


def with_columns(proto: Any, columns: Mapping[str, Sequence[Any]]) -> Any:
    """Put lists of any objects beside the tensors of a batch."""
    from tensordict import NonTensorData, NonTensorStack  # it comes with VERL

    for name, column in columns.items():
        proto.batch[name] = NonTensorStack(*(NonTensorData(data=value) for value in column))
    return proto
