"""Packing: episodes laid end to end up to a token budget, without padding.

A batch is rows [B, T] with an attention mask. A pack is a few of its rows as one sequence of
tokens; positions restart with each episode. Episodes with the same prompt, as those of a group
have, can share it as their prefix: it is computed once, for the first of them. An episode
with branches (`TokenStream.branches`) has several segments; the prefix of each is what comes before
it in its own conversation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

import numpy as np
import torch

from turnwise.chat.stream import context_spans
from turnwise.errors import ConfigError

Branches: TypeAlias = Sequence[tuple[int, int]]
"""The branches of an episode, as in `TokenStream.branches`."""
Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Pack:
    """Some episodes of a batch, end to end: N tokens, of which the policy sampled M."""

    rows: torch.Tensor
    """[b], their rows in the batch, ascending."""
    lengths: tuple[int, ...]
    """Tokens of each segment, in this order; an episode without branches is one segment."""
    prefixes: tuple[torch.Tensor, ...]
    """For each segment the indices of the tokens before it, among the N; empty at the beginning of
    an episode that has its prompt itself."""
    row_of: torch.Tensor
    """[N], the episode of each token, from 0."""
    columns: torch.Tensor
    """[N], the column of each token in the batch."""
    positions: torch.Tensor
    """[N], the position of each token in its episode."""
    sources: torch.Tensor
    """[M], the token before each policy token, whose logits predict it."""
    targets: torch.Tensor
    """[M], each policy token."""
    ends: torch.Tensor
    """[b], the last token of each episode."""

    @property
    def num_tokens(self) -> int:
        return len(self.columns)

    @property
    def num_policy_tokens(self) -> int:
        return len(self.targets)

    def to(self, device: torch.device) -> Pack:
        """Return the pack on another device."""
        names = ("rows", "row_of", "columns", "positions", "sources", "targets", "ends")
        moved = {name: getattr(self, name).to(device, non_blocking=True) for name in names}
        return Pack(lengths=self.lengths, prefixes=self.prefixes, **moved)

    def take(self, grid: torch.Tensor) -> torch.Tensor:
        """Return the entries of the tokens in a [B, T] tensor of the batch: [N]."""
        return grid[self.rows[self.row_of], self.columns]

    def scatter_to_rows(self, values: torch.Tensor, width: int) -> torch.Tensor:
        """Return values of the policy tokens [M] as rows of these episodes: [b, T], 0 elsewhere."""
        grid = values.new_zeros(len(self.rows), width)
        return grid.index_put((self.row_of[self.targets], self.columns[self.targets]), values)


def assign_to_packs(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Assign episodes to packs: the longest first, each to the first pack with enough space.

    An episode that is longer than the budget gets its own pack.

    >>> assign_to_packs([3, 9, 5, 2], budget=8)
    [[1], [0, 2], [3]]
    """
    if budget < 1:
        raise ConfigError(f"micro_batch_tokens got {budget}, expected a number from 1 up")
    packs: list[list[int]] = []
    free: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        length = lengths[index]
        place = next((p for p, left in enumerate(free) if left >= length), None)
        if place is None:
            packs.append([])
            free.append(budget)
            place = len(packs) - 1
        packs[place].append(index)
        free[place] -= length
    return [sorted(pack) for pack in packs]


def make_packs(
    attention_mask: torch.Tensor,
    response_mask: torch.Tensor,
    rows: torch.Tensor,
    budget: int,
    ids: torch.Tensor | None = None,
    branches: Sequence[Branches] | None = None,
) -> list[Pack]:
    """Pack these rows of a batch; rows without tokens are left out.

    attention_mask, response_mask: [B, T] bool on the CPU; rows: [b]. With the tokens `ids` [B, T],
    equal prompts are shared. `branches` has those of every row of the batch.
    """
    # By numpy: torch takes several times as long for arrays of this size.
    present, sampled, order = attention_mask.numpy(), response_mask.numpy(), rows.numpy()
    lengths = present[order].sum(1)
    order, lengths = order[lengths > 0], lengths[lengths > 0]
    prompts = _Prompts.none(len(order))
    if ids is not None:
        prompts = _Prompts.of(ids.cpu().numpy()[order], present[order], sampled[order])
    return [
        _pack(present, sampled, order[group], prompts.select(group), branches)
        for group in assign_together(lengths.tolist(), prompts, budget)
    ]


@dataclass(frozen=True)
class _Prompts:
    """The prompts of episodes: their tokens before the policy's first one."""

    names: tuple[int, ...]
    """The same number for the same prompt."""
    lengths: tuple[int, ...]
    """Tokens of it; 0 where no other episode has the same."""

    @classmethod
    def none(cls, number: int) -> _Prompts:
        return cls(tuple(range(number)), (0,) * number)

    @classmethod
    def of(cls, ids: Array, present: Array, sampled: Array) -> _Prompts:
        known: dict[bytes, int] = {}
        begun = np.logical_or.accumulate(sampled, 1)
        is_prompt = present & ~begun & begun[:, -1:]
        tokens, lengths = ids[is_prompt], is_prompt.sum(1).tolist()
        ends = pairwise(accumulate(lengths, initial=0))
        names = [known.setdefault(tokens[a:b].tobytes(), len(known)) for a, b in ends]
        numbers = Counter(names)
        each = zip(names, lengths, strict=True)
        return cls(tuple(names), tuple(n if numbers[name] > 1 else 0 for name, n in each))

    def select(self, group: Sequence[int]) -> _Prompts:
        return _Prompts(tuple(self.names[i] for i in group), tuple(self.lengths[i] for i in group))


def assign_together(lengths: Sequence[int], prompts: _Prompts, budget: int) -> list[list[int]]:
    """Assign episodes to packs as `assign_to_packs` does, those with the same prompt together."""
    units: list[list[int]] = []
    costs: list[int] = []
    open_unit: dict[int, int] = {}
    for index, length in enumerate(lengths):
        name, shared = prompts.names[index], prompts.lengths[index]
        unit = open_unit.get(name) if shared else None
        if unit is not None and costs[unit] + length - shared <= budget:
            units[unit].append(index)
            costs[unit] += length - shared
            continue
        open_unit[name] = len(units)
        units.append([index])
        costs.append(length)
    packs = assign_to_packs(costs, budget)
    return [sorted(index for unit in pack for index in units[unit]) for pack in packs]


def _pack(
    present: Array,
    sampled: Array,
    rows: Array,
    prompts: _Prompts,
    branches: Sequence[Branches] | None,
) -> Pack:
    order = rows.argsort()
    rows, prompts = rows[order], prompts.select(order.tolist())
    present = present[rows]
    owners = [prompts.names.index(name) for name in prompts.names]
    borrowed = [
        n if owner != row else 0
        for row, (owner, n) in enumerate(zip(owners, prompts.lengths, strict=True))
    ]
    computed = present & (present.cumsum(1, dtype=np.int32) > np.array(borrowed)[:, None])
    counts = computed.sum(1)
    starts = counts.cumsum() - counts
    lengths: list[int] = []
    prefixes: list[Array] = []
    for row, (start, count) in enumerate(zip(starts.tolist(), counts.tolist(), strict=True)):
        # Where the tokens of this episode are among the N; those of its prompt may be another's.
        prompt_start = starts[owners[row]]
        prompt = np.arange(prompt_start, prompt_start + borrowed[row])
        own = () if branches is None else branches[rows[row]]
        if not own:
            lengths.append(count)
            prefixes.append(prompt)
            continue
        places = np.concatenate([prompt, np.arange(start, start + count)])
        begins = [0, *(begin for begin, _ in own)]
        for begin, end in zip(begins, [*begins[1:], len(places)], strict=True):
            num_shared = borrowed[row] if begin == 0 else 0
            context = [places[a:b] for a, b in context_spans(own, begin)]
            lengths.append(end - begin - num_shared)
            prefixes.append(np.concatenate([places[:num_shared], *context]))
    # Row by row, so that the episodes come one after the other.
    row_of = np.arange(len(rows)).repeat(counts)
    columns = np.broadcast_to(np.arange(computed.shape[1]), computed.shape)[computed]
    firsts = list(accumulate(lengths, initial=0))
    shifts = [len(prefix) - first for prefix, first in zip(prefixes, firsts, strict=False)]
    positions = np.arange(len(columns)) + np.repeat(shifts, lengths)
    targets = np.flatnonzero(sampled[rows][computed])
    if (positions[targets] == 0).any():
        raise ConfigError(
            "an episode begins with a token that the policy sampled: nothing comes before it that "
            "could predict it. Begin episodes with a prompt or a start token."
        )
    # The token before the first one of a segment is the last of its prefix.
    before = np.arange(-1, len(columns) - 1)
    for first, prefix in zip(firsts, prefixes, strict=False):
        if len(prefix):
            before[first] = prefix[-1]
    return Pack(
        rows=torch.from_numpy(rows),
        lengths=tuple(lengths),
        prefixes=tuple(map(torch.from_numpy, prefixes)),
        row_of=torch.from_numpy(row_of),
        columns=torch.from_numpy(columns),
        positions=torch.from_numpy(positions),
        sources=torch.from_numpy(before[targets]),
        targets=torch.from_numpy(targets),
        ends=torch.from_numpy(starts + counts - 1),
    )
