"""What a person gets from `engine.generate`: strings, and everything that is known of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np

from turnwise.inference.protocol import FinishReason


@dataclass(frozen=True)
class GenerationOutput(Sequence[str]):
    """One answer for each prompt; it is itself the sequence of its strings.

    >>> output = GenerationOutput(["hi"], [[7, 2]], [[-0.1, -0.2]], [FinishReason.STOP], pad_id=0)
    >>> output[0], output.tokens.shape
    ('hi', (1, 2))
    """

    sequences: list[str]
    """The answers as text, without special tokens."""
    token_ids: list[list[int]]
    """The sampled tokens of each answer, stop token included."""
    logprobs: list[list[float]]
    """Their log-probs under the distribution that they were drawn from."""
    finish_reasons: list[FinishReason]
    """Why each answer ended."""
    pad_id: int
    """What fills the shorter rows of `tokens`."""

    @cached_property
    def tokens(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The sampled tokens as one array [batch, longest answer], padded on the right."""
        longest = max((len(ids) for ids in self.token_ids), default=0)
        table = np.full((len(self.token_ids), longest), self.pad_id, dtype=np.int64)
        for row, ids in zip(table, self.token_ids, strict=True):
            row[: len(ids)] = ids
        return table

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        return self.sequences[index]

    def __len__(self) -> int:
        return len(self.sequences)
