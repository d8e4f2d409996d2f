"""`PromptDataset`: the prompts to train on, one row each; made from a source or by the settings."""

import itertools
import logging
import operator
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, Subset

from turnwise.chat import ChatFormat
from turnwise.config import DatasetConfig, EnvironmentConfig
from turnwise.data.sources import (
    FILE_KINDS,
    Source,
    is_file_name,
    read_files,
    read_row,
    read_rows,
    read_tasks,
)
from turnwise.deadlines import run_sync
from turnwise.env import environment_factory, reset_environment
from turnwise.env.catalog import EnvironmentSource
from turnwise.env.prompts import read_prompt
from turnwise.errors import ConfigError, did_you_mean
from turnwise.models import load_tokenizer

Truncation: TypeAlias = Literal["error", "drop", "left", "right"]
"""Prompts that are too long refuse the dataset, their rows are left out, or their beginning
(`left`) or end is cut off."""

_LOG = logging.getLogger("turnwise")
_DEFAULT_SIZE = 1000
_DEFAULT_TOKENIZER = "tiny"


class PromptDataset(Dataset[dict[str, Any]]):
    """A map-style torch `Dataset` of dicts, each with a `prompt`.

    `source` is a file of the kind .jsonl, .json or .parquet, several of them, a list of texts or
    dicts, or anything that can be counted and indexed, such as a split of a Hugging Face dataset.
    With a tokenizer an item has `input_ids` and `attention_mask` too, lists of ints: a text as it
    is, messages by the chat template. With `prompt_key=None` the rows are tasks of an environment
    and need no prompt.

    >>> dataset = PromptDataset([{"question": "6 x 7?", "answer": "42"}], prompt_key="question")
    >>> dataset[0]["prompt"], dataset[0]["answer"], len(dataset)
    ('6 x 7?', '42', 1)

    A subclass may make its items itself, in a `__getitem__` of its own. Without a source it has
    `size` rows; if that is not given, as many as its `env` has (`len(self.env)`), else 1000.
    """

    def __init__(
        self,
        source: Source | None = None,
        tokenizer: Any = None,
        *,
        prompt_key: str | None = "prompt",
        max_prompt_length: int | None = None,
        truncation: Truncation = "error",
        tokenizer_kwargs: Mapping[str, Any] | None = None,
        size: int | None = None,
    ) -> None:
        if size is not None and (size < 1 or source is not None):
            raise ConfigError(f"size got {size}, expected at least 1, and no source")
        if prompt_key is None and (tokenizer is not None or max_prompt_length is not None):
            raise ConfigError("rows without a prompt_key cannot be tokenized or limited")
        if truncation not in get_args(Truncation):
            kinds = ", ".join(get_args(Truncation))
            raise ConfigError(f"truncation got {truncation!r}, expected {kinds}")
        if isinstance(tokenizer, str):
            expected = f"transformers.AutoTokenizer.from_pretrained({tokenizer!r})"
            raise ConfigError(f"tokenizer got a text, expected a tokenizer: {expected}")
        self._tokenizer = tokenizer
        self._size = size
        self.tokenizer_kwargs: dict[str, Any] = dict(tokenizer_kwargs or {})
        """Keyword arguments for tokenizing texts; messages go through the chat template."""
        self.max_prompt_length = max_prompt_length
        self._format: ChatFormat | None = None
        self._rows: Any = None
        self._cut: dict[int, str] = {}
        """What is left of prompts that were too long, by the number of the row."""
        self.origin: DatasetConfig | None = None
        """The files that the rows are from, or None."""
        if source is None:
            return
        self._rows = rows = read_rows(source, prompt_key)
        if max_prompt_length is not None:
            self._rows = self._short_rows(rows, max_prompt_length, truncation)
        paths = source if isinstance(source, list | tuple) else [source]
        is_whole = self._rows is rows and not self._cut  # otherwise the files hold other rows
        if is_whole and all(map(is_file_name, paths)):
            names = [str(path) for path in paths]
            self.origin = DatasetConfig(names, prompt_key=prompt_key or "prompt")

    @property
    def tokenizer(self) -> Any:
        """The given tokenizer; a subclass that makes its items itself always has one."""
        if self._tokenizer is None and self.makes_items:
            text = "%s got no tokenizer and uses that of the built-in model %r. Pass tokenizer=..."
            _LOG.warning(text, type(self).__name__, _DEFAULT_TOKENIZER)
            self._tokenizer = load_tokenizer(_DEFAULT_TOKENIZER)
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    @property
    def makes_items(self) -> bool:
        """Whether a subclass makes the items, and no source has them."""
        return self._rows is None and type(self).__getitem__ is not PromptDataset.__getitem__

    def __len__(self) -> int:
        if self.makes_items:
            environment = getattr(self, "env", None)
            if self._size is not None:
                return self._size
            return len(environment) if isinstance(environment, Sized) else _DEFAULT_SIZE
        if self._rows is None:
            fix = "Write one, or pass a source: a file, or a list of texts or dicts."
            name = type(self).__name__
            raise ConfigError(f"{name} was given no source and has no own __getitem__. {fix}")
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        item = self._plain_row(index)
        if self.tokenizer is not None:
            item["input_ids"], item["attention_mask"] = self._tokens(item)
        return item

    def plain_row(self, index: int) -> dict[str, Any]:
        """Return an item without its token ids."""
        is_overridden = type(self).__getitem__ is not PromptDataset.__getitem__
        return self[index] if is_overridden else self._plain_row(index)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self.__getitem__, range(len(self)))

    def _tokens(self, row: Mapping[str, Any]) -> tuple[list[int], list[int]]:
        """Return ids and mask of a prompt: text as it is, messages by the chat template."""
        prompt = read_prompt(row)
        if isinstance(row["prompt"], str) and not prompt.system:
            tokens = self.tokenizer(prompt.text, **self.tokenizer_kwargs)
            ids = flat_ids(tokens["input_ids"])
            return ids, flat_ids(tokens.get("attention_mask", [1] * len(ids)))
        if self._format is None:
            if not getattr(self.tokenizer, "chat_template", None):
                raise ConfigError(
                    "a prompt has several messages, and the tokenizer has no chat template. Set "
                    "tokenizer.chat_template, or give no tokenizer: episodes write messages too."
                )
            self._format = ChatFormat(self.tokenizer)
        ids = self._format.prompt_ids(prompt.messages)
        return ids, [1] * len(ids)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_format": None}  # it cannot be pickled

    def _plain_row(self, index: int) -> dict[str, Any]:
        number = range(len(self))[operator.index(index)]
        row = dict(self._rows[number])
        return {**row, "prompt": self._cut[number]} if number in self._cut else row

    def _short_rows(self, rows: Any, limit: int, truncation: Truncation) -> Any:
        """Check the length of every prompt; leave out those that are too long, or cut them."""
        if self.tokenizer is None or limit < 1:
            raise ConfigError(
                f"max_prompt_length={limit} must be at least 1, with a tokenizer to count by"
            )
        lengths = [sum(self._tokens(rows[number])[1]) for number in range(len(rows))]
        kept = [number for number, length in enumerate(lengths) if length <= limit]
        if len(kept) == len(rows):
            return rows
        num_long = len(rows) - len(kept)
        share = f"{num_long} of {len(rows)} prompts are longer than max_prompt_length={limit}"
        if truncation == "error" or (truncation == "drop" and not kept):
            raise ConfigError(
                f"{share}, up to {max(lengths)} tokens. Raise the limit, or leave such rows out "
                "with truncation='drop', or cut texts with 'left' or 'right'."
            )
        if truncation == "drop":
            _LOG.warning("%s and left out.", share)
            return Subset(rows, kept)
        for number in set(range(len(rows))).difference(kept):
            self._cut[number] = self._cut_text(rows[number], limit, truncation)
        _LOG.warning("%s and cut on the %s.", share, truncation)
        return rows

    def _cut_text(self, row: dict[str, Any], limit: int, side: Truncation) -> str:
        """Return as much of the end or the beginning of a prompt as fits."""
        text = row["prompt"]
        if not isinstance(text, str):
            raise ConfigError(f"messages cannot be cut with truncation={side!r}: {text!r:.80}")

        def cut(length: int) -> str:
            return text[-length:] if side == "left" else text[:length]

        def count(length: int) -> int:
            return sum(self._tokens({**row, "prompt": cut(length)})[1])

        num_fit = bisect_right(range(1, len(text)), limit, key=count)
        if not (kept := cut(num_fit) if num_fit else "").strip():
            raise ConfigError(f"max_prompt_length={limit} leaves no words of {text!r:.80}")
        return kept


RLHFDataset = PromptDataset
"""The same class under the name that users of VERL know."""


class CustomEnvDataset(PromptDataset):
    """Row i is the initial prompt of an environment that is reset with the seed `seed + i`.

    `environment` is a name, a class, a factory or an instance, which is not changed; `config` is
    the environment's, the other options are `PromptDataset`'s. An item has the `prompt` (prefix and
    first observation), the `seed`, the `state` as text, and `expected_action` if the environment
    has an expert. For evaluation, begin after the last seed of the training.

    >>> dataset = CustomEnvDataset("grid-world", size=3)
    >>> len(dataset), dataset[2]["seed"], dataset[2]["expected_action"]
    (3, 2, 'right')
    """

    def __init__(
        self,
        environment: EnvironmentSource,
        size: int = 1000,
        seed: int = 0,
        tokenizer: Any = None,
        *,
        config: EnvironmentConfig | Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if size < 1:
            raise ConfigError(f"size got {size}, expected at least 1")
        self.environment = environment
        super().__init__(InitialPrompts(environment, config, size, seed), tokenizer, **options)


@dataclass(frozen=True)
class InitialPrompts:
    """The initial prompts of an environment by seed; a fresh environment makes each."""

    environment: EnvironmentSource
    config: EnvironmentConfig | Mapping[str, Any] | None
    size: int
    seed: int

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        seed = self.seed + index
        environment = environment_factory(self.environment, self.config)()
        try:
            observation = run_sync(reset_environment(environment, seed))
            row = {
                "prompt": "\n\n".join(filter(None, [environment.get_prompt_prefix(), observation])),
                "seed": seed,
                "state": environment.get_state_description(),
            }
            action = environment.expert_action()
        finally:
            environment.close()
        return row if action is None else {**row, "expected_action": action}


def dataset_by_name(config: DatasetConfig, *, are_prompts: bool) -> PromptDataset | None:
    """Return the dataset that the settings name, or None if they name no file.

    Rows that are not prompts are tasks, which an environment reads as they are.
    """
    if config.path is None:
        return None
    paths = config.paths
    if paths[0].startswith("<"):
        raise ConfigError(
            f"the dataset was {paths[0].partition(':')[2]} in a script, which cannot be read from "
            "here. Save its rows as .jsonl and name the file: --dataset or the setting dataset"
        )
    located = read_tasks(paths[0], config.split)
    if located is None:
        folders = (Path(path).expanduser() for path in paths)
        located = read_files(file for folder in folders for file in _files(folder, config.split))
    prompt_key = config.prompt_key if are_prompts else None
    rows = []
    for where, value in itertools.islice(located, config.max_rows):
        row = read_row(value, None, where)
        renamed = {name: item for name, item in row.items() if name not in config.columns.values()}
        for new, old in config.columns.items():
            if old not in row:
                hint = did_you_mean(old, map(str, row))
                raise ConfigError(f"{where} has no {old!r}, which dataset.columns names. {hint}")
            renamed[new] = row[old]
        rows.append(read_row(renamed, prompt_key, where))
    if not rows:
        raise ConfigError(f"there are no rows in {', '.join(paths)}")
    dataset = PromptDataset(rows, prompt_key=prompt_key)
    dataset.origin = config
    return dataset


def _files(path: Path, split: str | None) -> list[Path]:
    """Return the file itself, or the files of a folder that belong to the split."""
    if not path.is_dir():
        if split is not None:
            raise ConfigError(f"dataset.split got {split!r}, and {path} is not a folder")
        return [path]
    splits: dict[str, list[Path]] = {}
    for file in sorted(path.iterdir()):
        if file.suffix in FILE_KINDS:  # train.jsonl, or train-00000-of-00002.parquet
            splits.setdefault(file.name.partition(".")[0].partition("-")[0], []).append(file)
    if split is None and len(splits) == 1:
        return next(iter(splits.values()))
    if split not in splits:
        hint = did_you_mean(split or "", splits or FILE_KINDS)
        raise ConfigError(f"dataset.split got {split!r} for the folder {path}. {hint}")
    return splits[split]


def flat_ids(ids: Any) -> list[int]:
    """Return token ids as a list, from a list, an array or a tensor."""
    flat: list[Any] = ids.tolist() if hasattr(ids, "tolist") else list(ids)
    while flat and isinstance(flat[0], list):  # a batch of one
        flat = flat[0]
    return flat


def collate_fn(data_list: Sequence[Mapping[str, Any]], pad_token_id: int = 0) -> dict[str, Any]:
    """Collate items into a batch, for torch's `DataLoader`.

    `input_ids` and `attention_mask` become tensors [num_items, longest], padded on the left, so
    that generation continues from the last column. Everything else becomes a list, with None where
    an item has no such key.

    >>> batch = collate_fn([{"input_ids": [5], "seed": 1}, {"input_ids": [6, 7]}])
    >>> batch["input_ids"].tolist(), batch["attention_mask"].tolist(), batch["seed"]
    ([[0, 5], [6, 7]], [[0, 1], [1, 1]], [1, None])
    """
    if not data_list:
        raise ConfigError("there are no items to make a batch of")
    keys = list(dict.fromkeys(key for item in data_list for key in item))
    batch: dict[str, Any] = {key: [item.get(key) for item in data_list] for key in keys}
    if "input_ids" not in batch:
        return batch
    ids, masks = [], []
    for number, item in enumerate(data_list):
        if item.get("input_ids") is None:
            raise ConfigError(f"item {number} of the batch has no input_ids, and others have")
        ids.append(torch.tensor(flat_ids(item["input_ids"]), dtype=torch.long))
        mask = item.get("attention_mask")
        mask = [1] * len(ids[-1]) if mask is None else flat_ids(mask)
        masks.append(torch.tensor(mask, dtype=torch.long))
    batch["input_ids"] = pad_sequence(ids, True, pad_token_id, padding_side="left")
    batch["attention_mask"] = pad_sequence(masks, True, 0, padding_side="left")
    return batch
