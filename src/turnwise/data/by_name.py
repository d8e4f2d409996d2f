"""Makes a dataset from the settings: files or a folder of splits, columns, number of rows."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from turnwise.config import DatasetConfig
from turnwise.data.dataset import PromptDataset
from turnwise.data.sources import FILE_KINDS, Row, read_files, read_row
from turnwise.errors import ConfigError, did_you_mean


def dataset_by_name(config: DatasetConfig, *, are_prompts: bool) -> PromptDataset | None:
    """Return the dataset that the settings name, or None if they name no file.

    Rows that are not prompts are tasks, which an environment reads as they are.
    """
    if config.path is None:
        return None
    paths = [config.path] if isinstance(config.path, str) else config.path
    if paths[0].startswith("<"):
        raise ConfigError(
            f"the dataset was {paths[0].partition(':')[2]} in a script, which cannot be read from "
            "here. Save its rows as .jsonl and name the file: --dataset or the setting dataset"
        )
    files = [file for path in paths for file in _files(Path(path).expanduser(), config.split)]
    prompt_key = config.prompt_key if are_prompts else None
    rows = [
        read_row(_renamed(read_row(value, None, place), config.columns, place), prompt_key, place)
        for place, value in itertools.islice(read_files(files), config.max_rows)
    ]
    if not rows:
        raise ConfigError(f"there are no rows in {', '.join(map(str, files))}")
    found = PromptDataset(rows, prompt_key=prompt_key)
    found.origin = config
    return found


def _files(path: Path, split: str | None) -> list[Path]:
    """Return the file itself, or the files of a folder that belong to the split."""
    if not path.is_dir():
        if split is not None:
            raise ConfigError(
                f"dataset.split got {split!r}, and {path} is not a folder: expected one that holds "
                f"{split}.jsonl or the like"
            )
        return [path]
    splits: dict[str, list[Path]] = {}
    for file in sorted(path.iterdir()):
        if file.suffix in FILE_KINDS:  # train.jsonl, or train-00000-of-00002.parquet
            splits.setdefault(file.name.partition(".")[0].partition("-")[0], []).append(file)
    if split is None and len(splits) == 1:
        return next(iter(splits.values()))
    if split not in splits:
        kinds = ", ".join(FILE_KINDS)
        hint = did_you_mean(split or "", splits) if splits else f"It has no file of {kinds}."
        raise ConfigError(f"dataset.split got {split!r} for the folder {path}. {hint}")
    return splits[split]


def _renamed(row: Row, columns: dict[str, str], place: str) -> Row:
    found: dict[str, Any] = dict(row)
    for new, old in columns.items():
        if old not in row:
            hint = did_you_mean(old, map(str, row))
            raise ConfigError(f"{place} has no {old!r}, which dataset.columns names. {hint}")
        found.pop(old, None)
        found[new] = row[old]
    return found
