"""Rewards of whole batches in the layout of VERL's `DataProto`: the batch, and its responses."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeGuard

from turnwise.deadlines import run_sync
from turnwise.errors import ConfigError
from turnwise.reward.function import RewardFn, compute_reward_async
from turnwise.reward.result import as_plain
from turnwise.types import Trajectory

if TYPE_CHECKING:
    from turnwise.env.base import BaseEnvironment


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


def is_batch(data: object) -> bool:
    """Whether this is a batch of VERL, or one in its layout."""
    return _has(getattr(data, "batch", None), "responses") or "trajectory" in _objects(data)


def carried_trajectories(data: Any) -> list[Trajectory] | None:
    """Returns the episodes in a batch, as turnwise's trainers provide them; None without any."""
    trajectories = _objects(data).get("trajectory")
    return None if trajectories is None else [Trajectory.of(one) for one in trajectories]


def score_responses(
    make: Callable[[], BaseEnvironment], data: Any, tokenizer: Any, reward_fn: RewardFn | None
) -> list[float]:
    """Scores each response of a batch as the first action of an episode of its own."""
    texts = _response_texts(data, tokenizer)
    starts = _objects(data).get("extra_info", [None] * len(texts))
    return [
        run_sync(_score_response(make, action, start or {}, reward_fn))
        for action, start in zip(texts, starts, strict=True)
    ]


async def _score_response(
    make: Callable[[], BaseEnvironment],
    action: str,
    start: Mapping[str, Any],
    reward_fn: RewardFn | None,
) -> float:
    """Takes one action in a fresh environment; `start` has its `seed` and `task`."""
    from turnwise.env import reset_environment, step_environment

    environment = make()
    try:
        seed, environment.task = start.get("seed"), start.get("task")
        first = await reset_environment(environment, seed)
        state = environment.get_state_description()
        step = await step_environment(environment, action)
        trajectory = Trajectory(
            [state],
            [action],
            [step.reward],
            [step.done],
            [step.info],
            [step.observation],
            prompts=[environment.get_prompt_prefix(), first],
            seed=seed,
            task=environment.task,
        )
        return (await compute_reward_async(trajectory, environment, reward_fn)).total
    finally:
        environment.close()


def _response_texts(data: Any, tokenizer: Any) -> list[str]:
    """Returns the responses of a batch as texts.

    They are texts already, or token ids [B, T], which the tokenizer decodes. The last columns of
    `attention_mask`, if the batch has it, tell tokens from padding.
    """
    texts = _objects(data).get("response_texts")
    responses = data.batch["responses"] if texts is None else texts
    if all(isinstance(response, str) for response in responses):
        return list(responses)
    if tokenizer is None:
        raise ConfigError(
            "the responses are token ids, and there is no tokenizer to decode them. "
            "Pass tokenizer=, or a batch whose responses are texts."
        )
    rows: list[list[int]] = [as_plain(row) for row in responses]
    if _has(data.batch, "attention_mask"):
        masks = [as_plain(row) for row in data.batch["attention_mask"]]
        rows = [
            [token for token, seen in zip(row, mask[len(mask) - len(row) :], strict=True) if seen]
            for row, mask in zip(rows, masks, strict=True)
        ]
    return [str(tokenizer.decode(row, skip_special_tokens=True)) for row in rows]


def _objects(data: Any) -> Mapping[str, Any]:
    return getattr(data, "non_tensor_batch", None) or {}


def _has(columns: Any, name: str) -> bool:
    return hasattr(columns, "keys") and name in columns.keys()  # noqa: SIM118 - a TensorDict's too
