"""Items into a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.data.dataset import flat_ids
from turnwise.errors import ConfigError


def collate_fn(data_list: Sequence[Mapping[str, Any]], pad_token_id: int = 0) -> dict[str, Any]:
    """A batch of items, as torch's DataLoader wants it made.

    `input_ids` and `attention_mask` become tensors [num_items, longest], padded on the left: a
    model goes on from the last token, which then stands in one column. Everything else becomes a
    list, with None where an item has no such key.

    >>> batch = collate_fn([{"input_ids": [5], "seed": 1}, {"input_ids": [6, 7]}])
    >>> batch["input_ids"].tolist(), batch["attention_mask"].tolist(), batch["seed"]
    ([[0, 5], [6, 7]], [[0, 1], [1, 1]], [1, None])
    """
    if not data_list:
        raise ConfigError("there are no items to make a batch of")
    keys = list(dict.fromkeys(key for item in data_list for key in item))
    batch: dict[str, Any] = {key: [item.get(key) for item in data_list] for key in keys}
    if "input_ids" in batch:
        ids, mask = _padded(data_list, pad_token_id)
        batch |= {"input_ids": ids, "attention_mask": mask}
    return batch


def _padded(items: Sequence[Mapping[str, Any]], pad_token_id: int) -> tuple[Any, Any]:
    import torch

    rows = []
    for number, item in enumerate(items):
        if item.get("input_ids") is None:
            raise ConfigError(f"item {number} of the batch has no input_ids, and others have")
        ids = flat_ids(item["input_ids"])
        given = item.get("attention_mask")
        mask = [1] * len(ids) if given is None else flat_ids(given)
        if len(mask) != len(ids):
            raise ConfigError(
                f"item {number} of the batch has {len(ids)} input_ids and an attention_mask of "
                f"{len(mask)}; expected as many"
            )
        rows.append((ids, mask))
    longest = max(len(ids) for ids, _ in rows)
    padding = [longest - len(ids) for ids, _ in rows]
    padded_ids = [[pad_token_id] * p + ids for p, (ids, _) in zip(padding, rows, strict=True)]
    padded_mask = [[0] * p + mask for p, (_, mask) in zip(padding, rows, strict=True)]
    return torch.tensor(padded_ids, dtype=torch.long), torch.tensor(padded_mask, dtype=torch.long)
