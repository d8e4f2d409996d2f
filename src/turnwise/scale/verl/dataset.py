"""`CustomEnvironmentDataset`: the starts of episodes as rows that VERL takes."""

from __future__ import annotations

import copy
import operator
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import torch
from torch.utils.data import Dataset

from turnwise.data import CustomEnvDataset
from turnwise.data.dataset import InitialPrompts
from turnwise.data.order import rows_for_step
from turnwise.env.catalog import EnvironmentSource
from turnwise.episode.seeds import derive_seed, training_seed
from turnwise.errors import ConfigError
from turnwise.scale.verl.settings import AGENT_LOOP
from turnwise.trainer.components import UserComponents
from turnwise.trainer.rollout import Rows, episode_seed, held_out_tasks

TRAIN, HELD_OUT = "turnwise:train", "turnwise:held-out"
"""The names of the datasets, where VERL expects files."""


@dataclass(eq=False, repr=False)
class CustomEnvironmentDataset(Dataset[dict[str, Any]]):
    """Row i is where episode i starts: its seed and its task, as the local trainer has them.

    Steps take `batch_size` rows, in order. With a tokenizer a row also has the prompt's tokens
    (`input_ids`, `attention_mask`); VERL needs none, since its agent loop renders the prompt.
    `rows` is a dataset whose rows are the tasks; without one an episode has a seed alone. With
    `in_order` row i is the dataset's row i, for samplers that choose among them.
    """

    environment: EnvironmentSource
    tokenizer: Any = None
    size: int = 1000
    _: KW_ONLY
    rows: Rows | None = None
    batch_size: int = 1
    seed: int = 0
    max_length: int = 512
    held_out: bool = False
    in_order: bool = False
    name: str = "environment"

    def __post_init__(self) -> None:
        if self.size < 1 or self.batch_size < 1:
            raise ConfigError(
                f"got size={self.size}, batch_size={self.batch_size}; expected at least 1"
            )
        self._tasks = held_out_tasks(self.size, self.seed, self.rows) if self.held_out else None
        if self._tasks is not None:
            self.size = len(self._tasks)

    def without_tokens(self) -> CustomEnvironmentDataset:
        """Return the same starts without prompt tokens, which the agent loop makes."""
        other = copy.copy(self)
        other.tokenizer = None
        return other

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        number = range(self.size)[operator.index(index)]
        seed, sampling_seed, task = self._start(number)
        row: dict[str, Any] = {
            "raw_prompt": [{"role": "user", "content": ""}],  # the episode renders its own prompt
            "agent_name": AGENT_LOOP,
            "data_source": self.name,
            "reward_model": {"style": "environment", "ground_truth": None},
            "extra_info": {
                "index": number,
                "seed": seed,
                "sampling_seed": sampling_seed,
                "task": task,
            },
            "index": number,
        }
        if self.tokenizer is None:
            # VERL counts the rows of a batch by a tensor.
            return {**row, "dummy_tensor": torch.zeros(1, dtype=torch.uint8)}
        prompt = InitialPrompts(self.environment, None, 1, seed)[0]["prompt"]
        encoded = self.tokenizer(
            prompt,
            max_length=self.max_length,
            truncation=True,
            padding="max_length",
            return_tensors="pt",
        )
        return {
            **row,
            "raw_prompt": [{"role": "user", "content": prompt}],
            "input_ids": encoded["input_ids"][0],
            "attention_mask": encoded["attention_mask"][0],
        }

    def _start(self, index: int) -> tuple[int, int, Any]:
        """Return the seed, the seed of the sampling and the task, as the local trainer has them."""
        rows: Any = self.rows
        sampling = self.seed
        if self._tasks is not None:
            task = self._tasks[index]
            return task.seed, sampling, task.task
        step, number = divmod(index, self.batch_size)
        seed = training_seed(self.seed, "train", step, 0, number)
        if rows is None:
            return seed, sampling, None
        chosen = index % len(rows)
        if not self.in_order:
            chosen = rows_for_step(len(rows), index, 1, self.seed)[0]
        if isinstance(getattr(rows, "dataset", rows), CustomEnvDataset):
            sampling = derive_seed(self.seed, "sampling", step, 0)
        row = rows[chosen]
        return episode_seed(row, rows, seed), sampling, row


def make_datasets(
    user: UserComponents,
    *,
    name: str,
    seed: int,
    batch_size: int,
    num_steps: int,
    num_held_out: int,
    has_sampler: bool,
) -> tuple[CustomEnvironmentDataset, CustomEnvironmentDataset]:
    """Return the training starts and the held-out starts of a run."""
    assert user.environment is not None
    train: Any = user.train_rows
    held_out: Any = user.eval_rows
    if isinstance(train, CustomEnvironmentDataset):
        if user.eval_dataset is None:  # such a dataset makes the rows of evaluations itself
            held_out = None
        train = train.without_tokens()
    else:
        in_order = train is not None and has_sampler
        train = CustomEnvironmentDataset(
            user.environment,
            # One step more than there is: VERL does not resume a loader that reached its end.
            size=len(train) if in_order else (num_steps + 1) * batch_size,
            rows=train,
            batch_size=batch_size,
            in_order=in_order,
            seed=seed,
            name=name,
        )
    if isinstance(held_out, CustomEnvironmentDataset):
        return train, held_out.without_tokens()
    return train, CustomEnvironmentDataset(
        user.environment, size=num_held_out, rows=held_out, held_out=True, seed=seed, name=name
    )


class RegisteredDataset(Dataset[dict[str, Any]]):
    """Stands for the datasets of this process, for VERL's trainers that make theirs by a class.

    VERL passes the dataset's name as `data_files`.
    """

    registered: ClassVar[dict[str, Any]] = {}

    def __new__(cls, data_files: str, **_: Any) -> Any:
        return cls.registered[data_files]
