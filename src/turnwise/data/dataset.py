"""`PromptDataset`: the prompts to train on, one row each; made from a source or by the settings."""

import itertools
import logging
import operator
from collections.abc import Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from torch.utils.data import Dataset

from turnwise.chat import ChatFormat
from turnwise.config import DatasetConfig, EnvironmentConfig
from turnwise.data.sources import (
    FILE_KINDS,
    LazyRows,
    Row,
    Source,
    is_file_name,
    read_files,
    read_row,
    read_rows,
)
from turnwise.deadlines import is_async, run_sync
from turnwise.env import environment_factory, reset_environment
from turnwise.env.catalog import EnvironmentSource
from turnwise.env.driver import finish_without_loop
from turnwise.env.prompts import prompt_of
from turnwise.errors import ConfigError, did_you_mean
from turnwise.models import load_tokenizer

Truncation: TypeAlias = Literal["error", "drop", "left", "right"]
"""Prompts that are too long refuse the dataset, drop their row, or are cut at the left or right."""

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
            raise ConfigError(
                f"size got {size}, expected at least 1, and no source: a source has its own size"
            )
        if truncation not in get_args(Truncation):
            raise ConfigError(
                f"truncation got {truncation!r}, expected {', '.join(get_args(Truncation))}"
            )
        if isinstance(tokenizer, str):
            raise ConfigError(
                f"tokenizer got the text {tokenizer!r}, expected a tokenizer: "
                f"transformers.AutoTokenizer.from_pretrained({tokenizer!r})"
            )
        self._tokenizer = tokenizer
        self._size = size
        self.tokenizer_kwargs: dict[str, Any] = dict(tokenizer_kwargs or {})
        """Keyword arguments for tokenizing texts; messages go through the chat template."""
        self.max_prompt_length = max_prompt_length
        self._format: ChatFormat | None = None
        self._rows: list[Row] | LazyRows | None = None
        self._kept: list[int] | None = None
        self._cut: dict[int, str] = {}
        if prompt_key is None and (tokenizer is not None or max_prompt_length is not None):
            raise ConfigError(
                "rows without a prompt (prompt_key=None) cannot be tokenized or limited. Leave out "
                "the tokenizer and max_prompt_length, or say which column is the prompt."
            )
        self.origin = _origin(source, prompt_key)
        """The files that the rows are from, or None."""
        if source is not None:
            self._rows = read_rows(source, prompt_key)
            if max_prompt_length is not None:
                self._limit(self._rows, max_prompt_length, truncation)
            if self._kept is not None or self._cut:
                self.origin = None  # the files hold other rows

    @property
    def tokenizer(self) -> Any:
        """The given tokenizer; a subclass that makes its items itself always has one."""
        if self._tokenizer is None and self.makes_items:
            _LOG.warning(
                "%s got no tokenizer and uses that of the built-in model %r. "
                "Pass tokenizer= for another.",
                type(self).__name__,
                _DEFAULT_TOKENIZER,
            )
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
            raise ConfigError(
                f"{type(self).__name__} was given no source and has no __getitem__ of its own. "
                "Write one, or pass a source: a file, or a list of texts or dicts."
            )
        return len(self._rows) if self._kept is None else len(self._kept)

    def __getitem__(self, index: int) -> dict[str, Any]:
        item = self._plain_row(index)
        if self.tokenizer is not None:
            item["input_ids"], item["attention_mask"] = self._tokens(item)
        return item

    def plain_row(self, index: int) -> dict[str, Any]:
        """Return an item without its token ids."""
        is_own = type(self).__getitem__ is not PromptDataset.__getitem__
        return self[index] if is_own else self._plain_row(index)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self.__getitem__, range(len(self)))

    def _tokens(self, row: Mapping[str, Any]) -> tuple[list[int], list[int]]:
        """Return ids and mask of a prompt: text as it is, messages by the chat template."""
        prompt = prompt_of(row)
        if not isinstance(row["prompt"], str) or prompt.system:
            ids = self._chat().prompt_ids(prompt.messages)
            return ids, [1] * len(ids)
        tokens = self.tokenizer(prompt.text, **self.tokenizer_kwargs)
        ids = flat_ids(tokens["input_ids"])
        mask = flat_ids(tokens["attention_mask"]) if "attention_mask" in tokens else [1] * len(ids)
        return ids, mask

    def _chat(self) -> ChatFormat:
        if self._format is None:
            if not getattr(self.tokenizer, "chat_template", None):
                raise ConfigError(
                    "a prompt has several messages, and the tokenizer has no chat template to "
                    "write them with. Set tokenizer.chat_template, or leave the tokenizer out: "
                    "an episode writes its messages itself."
                )
            self._format = ChatFormat(self.tokenizer)
        return self._format

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_format": None}  # it cannot be pickled

    def _plain_row(self, index: int) -> dict[str, Any]:
        number = range(len(self))[operator.index(index)]
        number = number if self._kept is None else self._kept[number]
        assert self._rows is not None  # or there is no length
        row = dict(self._rows[number])
        if number in self._cut:
            row["prompt"] = self._cut[number]
        return row

    def _limit(self, rows: list[Row] | LazyRows, limit: int, truncation: Truncation) -> None:
        """Check the length of every prompt, and drop or cut those that are too long."""
        if self.tokenizer is None or limit < 1:
            raise ConfigError(
                f"max_prompt_length got {limit}, expected at least 1, and a tokenizer to count by"
            )
        lengths = [self._length(rows[number]) for number in range(len(rows))]
        too_long = [number for number, length in enumerate(lengths) if length > limit]
        if not too_long:
            return
        share = f"{len(too_long)} of {len(rows)} prompts are longer than max_prompt_length={limit}"
        if truncation == "drop":
            if len(too_long) == len(rows):
                raise ConfigError(f"all prompts are longer than max_prompt_length={limit}")
            dropped = set(too_long)
            self._kept = [number for number in range(len(rows)) if number not in dropped]
            _LOG.warning("%s and left out.", share)
            return
        for number in too_long:
            prompt = rows[number]["prompt"]
            if truncation == "error" or not isinstance(prompt, str):
                raise ConfigError(
                    f"{share}; the prompt of row {number} has {lengths[number]} tokens: "
                    f"{prompt!r:.80}. Raise the limit, or leave such rows out with "
                    "truncation='drop'. A text can be cut ('left' or 'right'), messages cannot."
                )
            self._cut[number] = self._cut_prompt(rows[number], limit, truncation)
        _LOG.warning("%s and cut on the %s.", share, truncation)

    def _length(self, row: Mapping[str, Any]) -> int:
        return sum(self._tokens(row)[1])

    def _cut_prompt(self, row: Row, limit: int, side: Literal["left", "right"]) -> str:
        """As much of a text as fits, found by halving; it ends (or begins) as it did."""
        text: str = row["prompt"]

        def kept(num_characters: int) -> str:
            return text[len(text) - num_characters :] if side == "left" else text[:num_characters]

        fits, does_not = 0, len(text)
        while does_not - fits > 1:
            middle = (fits + does_not) // 2
            if self._length({**row, "prompt": kept(middle)}) <= limit:
                fits = middle
            else:
                does_not = middle
        if fits == 0:
            raise ConfigError(
                f"max_prompt_length={limit} leaves no room for a single character of {text!r:.80}"
            )
        return kept(fits)


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


class InitialPrompts:
    """The initial prompts of an environment by seed; a fresh environment makes each."""

    def __init__(
        self,
        environment: EnvironmentSource,
        config: EnvironmentConfig | Mapping[str, Any] | None,
        size: int,
        seed: int,
    ) -> None:
        self._environment, self._config = environment, config
        self._size, self._seed = size, seed
        self._make = environment_factory(environment, config)

    def __reduce__(self) -> Any:  # a factory cannot be pickled
        return InitialPrompts, (self._environment, self._config, self._size, self._seed)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> dict[str, Any]:
        seed = self._seed + range(self._size)[operator.index(index)]
        environment = self._make()
        try:
            reset = reset_environment(environment, seed)
            if is_async(environment.reset):
                observation = run_sync(reset)
            else:  # a new event loop would take longer than most resets
                observation = finish_without_loop(reset, f"{type(environment).__name__}.reset()")
            row = {
                "prompt": "\n\n".join(filter(None, [environment.get_prompt_prefix(), observation])),
                "seed": seed,
                "state": environment.get_state_description(),
            }
            action = environment.expert_action()
        finally:
            environment.close()
        return row if action is None else {**row, "expected_action": action}


def _origin(source: Any, prompt_key: str | None) -> DatasetConfig | None:
    paths = source if isinstance(source, list | tuple) else [source]
    if not paths or not all(is_file_name(path) for path in paths):
        return None
    return DatasetConfig([str(path) for path in paths], prompt_key=prompt_key or "prompt")


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
    dataset = PromptDataset(rows, prompt_key=prompt_key)
    dataset.origin = config
    return dataset


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
    renamed = dict(row)
    for new, old in columns.items():
        if old not in row:
            hint = did_you_mean(old, map(str, row))
            raise ConfigError(f"{place} has no {old!r}, which dataset.columns names. {hint}")
        renamed.pop(old, None)
        renamed[new] = row[old]
    return renamed


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
    import torch

    rows = []
    for number, item in enumerate(data_list):
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
    padded_ids = [[pad_token_id] * (longest - len(ids)) + ids for ids, _ in rows]
    padded_mask = [[0] * (longest - len(mask)) + mask for _, mask in rows]
    batch["input_ids"] = torch.tensor(padded_ids, dtype=torch.long)
    batch["attention_mask"] = torch.tensor(padded_mask, dtype=torch.long)
    return batch
