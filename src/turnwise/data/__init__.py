"""Datasets: prompts from files, lists, Hugging Face datasets, or an environment."""

from turnwise.data.dataset import (
    CustomEnvDataset,
    PromptDataset,
    RLHFDataset,
    Truncation,
    collate_fn,
)
from turnwise.data.order import epoch_order, parts_for_step, rows_for_step

__all__ = [
    "CustomEnvDataset",
    "PromptDataset",
    "RLHFDataset",
    "Truncation",
    "collate_fn",
    "epoch_order",
    "parts_for_step",
    "rows_for_step",
]
