"""Random batches with ragged masks, and what the algorithm tests compare with."""

import math
from collections.abc import Mapping
from typing import Any

import torch

NUM_ROWS = 9
LENGTH = 13

# Groups of any size but one, which an estimator refuses; and such with episodes that are alone.
PAIRED = ["b", "b", "a", "a", "a", "b", "a", "c", "c"]
WITH_LONERS = ["b", "b", "a", "a", "alone", "b", "a", "c", "lonely"]

MASKS = {
    "ragged": [
        "0000000000000",
        "0000001000000",
        "1111100000000",
        "1100111011110",
        "0011110000111",
        "1010101010101",
        "0000000000011",
        "1111111111111",
        "0111000110100",
    ],
    "prefix": [
        "1111100000000",
        "1000000000000",
        "1111111111111",
        "1110000000000",
        "1111111100000",
        "0000000000000",
        "1111100000000",
        "1111111110000",
        "1100000000000",
    ],
    "one token each": ["0000100000000"] * NUM_ROWS,
    "one token": ["0000000000000"] * 5 + ["0010000000000"] + ["0000000000000"] * 3,
    "all set": ["1" * LENGTH] * NUM_ROWS,
    "all masked": ["0" * LENGTH] * NUM_ROWS,
}

TOKEN_FIELDS = [
    "token_level_rewards",
    "values",
    "old_log_probs",
    "log_probs",
    "ref_log_probs",
    "sampler_log_probs",
    "advantages",
    "returns",
    "old_values",
    "vpreds",
    "importance_weights",
    "sum_pi_squared",
    "token_losses",
    "turn_ids",
]
"""[B, T]: what stands on masked tokens may never matter."""


def make_mask(kind: str) -> torch.Tensor:
    return torch.tensor([[c == "1" for c in row] for row in MASKS[kind]])


def make_batch(
    kind: str = "ragged",
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    mask: torch.Tensor | None = None,
) -> dict[str, Any]:
    """Everything that any function of `turnwise.algo` takes; masked tokens hold numbers too."""
    random = torch.Generator().manual_seed(seed)
    mask = make_mask(kind) if mask is None else mask
    num_rows, length = mask.shape

    def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64) * scale

    def tokens(scale: float = 1.0) -> torch.Tensor:
        return normal(num_rows, length, scale=scale)

    old = -tokens().abs() - 0.05
    log_probs = (old + tokens(0.5)).clamp(max=-0.01)
    old_values = tokens()
    numbers = {
        "token_level_rewards": tokens(),
        "values": tokens(),
        "old_log_probs": old,
        "log_probs": log_probs,
        "ref_log_probs": (old + tokens(0.5)).clamp(max=-0.02),
        "sampler_log_probs": log_probs + tokens(0.25),
        "advantages": tokens(),
        "returns": tokens(),
        "old_values": old_values,
        "vpreds": old_values + tokens(0.3),
        "importance_weights": tokens(0.4).exp(),
        "sum_pi_squared": (2 * old).exp() + (1 - old.exp()).square() * tokens().sigmoid(),
        "token_losses": tokens(),
        "reward_baselines": normal(num_rows),
        "bootstrap_values": normal(num_rows),
        "reward_parts": normal(num_rows, 3) * torch.tensor([1.0, 30.0, 0.1]),
    }
    turn_ids = make_turn_ids(mask, random)
    labels = torch.randint(0, 3, (num_rows, length + 1), generator=random)
    return {
        **{name: x.to(dtype) for name, x in numbers.items()},
        "response_mask": mask,
        "index": PAIRED if num_rows == NUM_ROWS else [i % (num_rows // 2) for i in range(num_rows)],
        "turn_ids": turn_ids,
        "anchor_states": [[f"room {label}" for label in row] for row in labels.tolist()],
    }


def make_turn_ids(mask: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Turns from 0, some of which follow each other without a masked token between."""
    ids = torch.full(mask.shape, 99)
    starts = mask & (torch.rand(mask.shape, generator=random) < 0.4)
    starts |= mask & (mask.cumsum(1) == 1)
    return torch.where(mask, starts.cumsum(1) - 1, ids)


def as_lists(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The same arguments for a reference: tensors as nested lists of float64 numbers."""
    return {name: _as_list(value) for name, value in arguments.items()}


def _as_list(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return (value.double() if value.is_floating_point() else value).tolist()


def copied(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value.clone() if isinstance(value, torch.Tensor) else value
        for name, value in arguments.items()
    }


def assert_close(actual: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """Tensors, numbers, or tuples and dicts of them: largest difference in bounds.

    Of numbers above 1 the difference is relative: a sum over many tokens has no more digits than
    its type, and processors add in different orders.
    """
    if isinstance(expected, dict):
        assert set(actual) == set(expected)
        for name in expected:
            assert_close(actual[name], expected[name], tolerance)
        return
    if isinstance(expected, tuple):
        assert len(actual) == len(expected)
        for a, e in zip(actual, expected, strict=True):
            assert_close(a, e, tolerance)
        return
    wanted = torch.as_tensor(expected, dtype=torch.float64)
    assert actual.shape == wanted.shape
    off = (actual.detach().double() - wanted).abs() / wanted.abs().clamp(min=1)
    difference = off.max().item() if wanted.numel() else 0.0
    assert not math.isnan(difference)
    assert difference < tolerance, f"off by {difference:.3g}"


def assert_same(actual: Any, expected: Any) -> None:
    """Bit for bit, but for the sign of a zero."""
    if isinstance(expected, dict):
        assert set(actual) == set(expected)
        pairs = [(actual[name], expected[name]) for name in expected]
    elif isinstance(expected, tuple):
        pairs = list(zip(actual, expected, strict=True))
    else:
        assert actual.dtype == expected.dtype
        assert torch.equal(actual, expected)
        return
    for a, e in pairs:
        assert_same(a, e)
