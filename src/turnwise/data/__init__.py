"""Datasets: prompts from files, lists, Hugging Face datasets, or an environment's openings."""

from turnwise.data.collate import collate_fn
from turnwise.data.dataset import PromptDataset, RLHFDataset, Truncation
from turnwise.data.mix import parts_for_step
from turnwise.data.openings import CustomEnvDataset
from turnwise.data.order import epoch_order, rows_for_step

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
