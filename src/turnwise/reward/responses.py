"""From responses in the layout of VERL's `DataProto` to episodes that can be scored."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from turnwise.errors import ConfigError
from turnwise.types import Trajectory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from turnwise.env.base import BaseEnvironment

_LOG = logging.getLogger("turnwise")
_DEFAULT_TOKENIZER = "tiny"


def is_batch(data: object) -> bool:
    """Whether this is a batch of VERL's, or one in its layout."""
    return _has(getattr(data, "batch", None), "responses") or "trajectory" in _objects(data)


def carried_trajectories(data: Any) -> list[Trajectory] | None:
    """The episodes that a batch brings along, as those of our trainers do; None if it does not."""
    trajectories = _objects(data).get("trajectory")
    return None if trajectories is None else [Trajectory.of(one) for one in trajectories]


def response_texts(data: Any, tokenizer: Any = None) -> list[str]:
    """What the responses of a batch say.

    They are texts already, or token ids [B, T], which the tokenizer decodes; without one it is that
    of the built-in model, if the ids can be its own. Padding is told by `attention_mask`, whose
    last columns are the response's, where the batch has it.
    """
    texts = _objects(data).get("response_texts")
    responses = data.batch["responses"] if texts is None else texts
    if all(isinstance(response, str) for response in responses):
        return list(responses)
    rows = _unpadded(responses, data.batch)
    if tokenizer is None:
        tokenizer = _default_tokenizer(rows)
    return [str(tokenizer.decode(row, skip_special_tokens=True)) for row in rows]


def starts(data: Any, num_rows: int) -> list[Mapping[str, Any]]:
    """Where the episode of each row begins: its `seed` and `task`, from the column `extra_info`."""
    given = _objects(data).get("extra_info")
    return [{}] * num_rows if given is None else [row or {} for row in given]


@asynccontextmanager
async def play_response(
    make: Callable[[], BaseEnvironment], action: str, start: Mapping[str, Any]
) -> AsyncIterator[tuple[Trajectory, BaseEnvironment]]:
    """Take one action in a fresh environment; it stays open until the episode has been scored."""
    from turnwise.env import reset_environment, step_environment

    environment = make()
    try:
        seed, task = start.get("seed"), start.get("task")
        environment.task = task
        opening = await reset_environment(environment, seed)
        state = environment.get_state_description()
        step = await step_environment(environment, action)
        trajectory = Trajectory(
            [state], [action], [step.reward], [step.done], [step.info], [step.observation]
        )
        trajectory.prompts = [environment.get_prompt_prefix(), opening]
        trajectory.seed, trajectory.task = seed, task
        yield trajectory, environment
    finally:
        environment.close()


async def play_responses(
    make: Callable[[], BaseEnvironment], data: Any, tokenizer: Any
) -> list[Trajectory]:
    """Each response as the first action of an episode of its own."""
    texts = response_texts(data, tokenizer)
    found = []
    for action, start in zip(texts, starts(data, len(texts)), strict=True):
        async with play_response(make, action, start) as (trajectory, _):
            found.append(trajectory)
    return found


def _objects(data: Any) -> Mapping[str, Any]:
    return getattr(data, "non_tensor_batch", None) or {}


def _has(columns: Any, name: str) -> bool:
    return hasattr(columns, "keys") and name in columns.keys()  # noqa: SIM118 - a TensorDict's too


def _unpadded(responses: Any, columns: Any) -> list[list[int]]:
    ids = [_plain(row) for row in responses]
    if not _has(columns, "attention_mask"):
        return ids
    masks = [_plain(row) for row in columns["attention_mask"]]
    return [
        [one for one, seen in zip(row, mask[len(mask) - len(row) :], strict=True) if seen]
        for row, mask in zip(ids, masks, strict=True)
    ]


def _plain(row: Any) -> list[Any]:
    return list(row.tolist() if hasattr(row, "tolist") else row)


def _default_tokenizer(rows: Sequence[Sequence[int]]) -> Any:
    from turnwise.models import load_tokenizer  # imports torch

    tokenizer = load_tokenizer(_DEFAULT_TOKENIZER)
    largest = max((max(row, default=0) for row in rows), default=0)
    if largest >= len(tokenizer):
        raise ConfigError(
            f"the responses are token ids up to {largest}, and no tokenizer was given to read them "
            "with. Pass tokenizer=, or a batch whose responses are texts."
        )
    _LOG.warning(
        "No tokenizer was given: responses are read with that of the built-in model %r. "
        "Pass tokenizer= for another.",
        _DEFAULT_TOKENIZER,
    )
    return tokenizer
