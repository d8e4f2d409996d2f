"""Datasets that the driver has already made, for VERL's trainers that make theirs by name."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset

TRAIN, HELD_OUT = "turnwise:train", "turnwise:held-out"

_datasets: dict[str, Dataset[dict[str, Any]]] = {}


def hand_over(train: Dataset[dict[str, Any]], held_out: Dataset[dict[str, Any]]) -> None:
    """What `HandedDataset` gives from now on, in this process."""
    _datasets.update({TRAIN: train, HELD_OUT: held_out})


class HandedDataset(Dataset[dict[str, Any]]):
    """With the arguments that VERL makes its datasets with; `data_files` says which one."""

    def __init__(self, data_files: str, **_: Any) -> None:
        self._dataset: Any = _datasets[data_files]

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row: dict[str, Any] = self._dataset[index]
        return row
