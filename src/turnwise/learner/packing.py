"""Packing: episodes laid end to end up to a token budget, without padding.

A batch is rows [B, T] with an attention mask. A pack is a few of its rows as one sequence of
tokens; positions restart with each episode. Episodes that begin with the same tokens can share
them as their prefix, which is computed once: the system prompt of all, the prompt of a group, and
the turns that were sampled alike. An episode with branches (`TokenStream.branches`) has several
segments; the prefix of each is what comes before it in its own conversation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch

from turnwise.chat.stream import context_spans
from turnwise.errors import ConfigError

Branches: TypeAlias = Sequence[tuple[int, int]]
"""The branches of an episode, as in `TokenStream.branches`."""
Chain: TypeAlias = list[tuple[int, int]]
"""Rows of a batch, each with the number of its first tokens that the one before it has too."""
Array: TypeAlias = np.ndarray[Any, Any]

# Episodes that share a prefix are in one pack. A prefix of less than this share of an episode saves
# less than packs are filled better without such a bond.
_WORTH_SHARING = 1 / 16


@dataclass(frozen=True)
class Pack:
    """Some episodes of a batch, end to end: N tokens, of which the policy sampled M."""

    rows: torch.Tensor
    """[b], their rows in the batch, ascending."""
    lengths: tuple[int, ...]
    """Tokens of each segment, in this order; an episode without branches is one segment, or none
    if another one begins with all of it."""
    prefixes: tuple[torch.Tensor, ...]
    """For each segment the indices of the tokens before it, among the N; empty at the beginning of
    an episode that shares nothing with one before it."""
    row_of: torch.Tensor
    """[N], the episode of each token, from 0; the first one of those that share it."""
    columns: torch.Tensor
    """[N], the column of each token in the batch."""
    positions: torch.Tensor
    """[N], the position of each token in its episode."""
    sources: torch.Tensor
    """[M], the token before each policy token, whose logits predict it."""
    targets: torch.Tensor
    """[M], each policy token; one that several episodes share is there for each of them."""
    target_rows: torch.Tensor
    """[M], the episode of each policy token, from 0."""
    target_columns: torch.Tensor
    """[M], the column of each policy token in the batch."""
    ends: torch.Tensor
    """[b], the last token of each episode's own conversation."""

    @property
    def num_tokens(self) -> int:
        return len(self.columns)

    @property
    def longest_context(self) -> int:
        """Tokens up to the end of a segment, those of its prefix included, in the longest."""
        return max(len(p) + n for p, n in zip(self.prefixes, self.lengths, strict=True))

    @property
    def num_policy_tokens(self) -> int:
        return len(self.targets)

    def to(self, device: torch.device) -> Pack:
        """Return the pack on another device."""
        tensors = {name: x for name, x in vars(self).items() if isinstance(x, torch.Tensor)}
        moved: Any = {name: x.to(device, non_blocking=True) for name, x in tensors.items()}
        return replace(self, **moved)

    def take(self, grid: torch.Tensor) -> torch.Tensor:
        """Return the entries of the tokens in a [B, T] tensor of the batch: [N]."""
        return grid[self.rows[self.row_of], self.columns]

    def scatter_to_rows(self, values: torch.Tensor, width: int) -> torch.Tensor:
        """Return values of the policy tokens [M] as rows of these episodes: [b, T], 0 elsewhere."""
        grid = values.new_zeros(len(self.rows), width)
        return grid.index_put((self.target_rows, self.target_columns), values)


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
        chosen = next((p for p, left in enumerate(free) if left >= length), len(packs))
        if chosen == len(packs):
            packs.append([])
            free.append(budget)
        packs[chosen].append(index)
        free[chosen] -= length
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
    equal beginnings are shared. `branches` has those of every row of the batch.
    """
    # By numpy: torch takes several times as long for arrays of this size.
    present, sampled = attention_mask.numpy(), response_mask.numpy()
    lengths = {row: int(present[row].sum()) for row in rows.tolist() if present[row].any()}
    if ids is None:
        chains = [[(row, 0)] for row in lengths]
    else:
        chains = _chain_by_prefix(ids.cpu().numpy(), present, lengths, budget, branches)
    costs = [sum(lengths[row] - num_shared for row, num_shared in chain) for chain in chains]
    return [
        _pack(present, sampled, [chains[i] for i in pack], branches)
        for pack in assign_to_packs(costs, budget)
    ]


def _chain_by_prefix(
    ids: Array,
    present: Array,
    lengths: Mapping[int, int],
    budget: int,
    branches: Sequence[Branches] | None,
) -> list[Chain]:
    """Return the episodes in chains, in each of which one shares its beginning with the next.

    In the order of their tokens, the one before has the longest beginning in common: a chain is a
    prefix tree, depth first.
    """
    # As big-endian bytes, whose order is that of the numbers.
    tokens = {row: ids[row][present[row]].astype(">i8") for row in lengths}
    chains: list[Chain] = []
    before = -1
    cost = 0
    for row in sorted(lengths, key=lambda row: tokens[row].tobytes()):
        num_shared = 0
        if chains:
            # A branch does not follow what stands before it in the row.
            linear = [branches[r][0][0] for r in (before, row) if branches and branches[r]]
            limit = min(lengths[before], lengths[row], *linear)
            differs = tokens[before][:limit] != tokens[row][:limit]
            num_shared = int(differs.argmax()) if differs.any() else limit
        added = lengths[row] - num_shared
        if num_shared < max(1, _WORTH_SHARING * lengths[row]) or cost + added > budget:
            chains.append([(row, 0)])
            cost = lengths[row]
        else:
            chains[-1].append((row, num_shared))
            cost += added
        before = row
    return chains


def _pack(
    present: Array, sampled: Array, chains: Sequence[Chain], branches: Sequence[Branches] | None
) -> Pack:
    rows = sorted(row for chain in chains for row, _ in chain)
    lengths: list[int] = []
    prefixes: list[Array] = []
    parts: defaultdict[str, list[Array]] = defaultdict(list)
    ends = np.zeros(len(rows), dtype=np.int64)
    indices = np.arange(0)
    num_tokens = 0
    for row, num_shared in (link for chain in chains for link in chain):
        at = np.flatnonzero(present[row])
        computed = np.arange(num_tokens, num_tokens + len(at) - num_shared)
        # Where the tokens of this episode are among the N: shared ones where the episode before it
        # in the chain has them.
        indices = np.concatenate([indices[:num_shared], computed])
        previous = np.concatenate([[-1], indices[:-1]])
        forks = branches[row] if branches else ()
        end_of_own = len(at)
        if forks and forks[-1][0] == len(at):
            end_of_own = forks[-1][1]
            forks = forks[:-1]
        begins = [0, *(begin for begin, _ in forks)]
        for begin, end in zip(begins, [*begins[1:], len(at)], strict=True):
            first = max(begin, num_shared)
            spans = [(0, first)] if begin == 0 else context_spans(forks, begin)
            prefix = np.concatenate([indices[:0], *(indices[a:b] for a, b in spans)])
            if begin:
                previous[begin] = prefix[-1] if len(prefix) else -1
            if first < end:
                lengths.append(end - first)
                prefixes.append(prefix)
                parts["positions"].append(np.arange(len(prefix), len(prefix) + end - first))
        name = rows.index(row)
        chosen = np.flatnonzero(sampled[row][at])
        if (previous[chosen] < 0).any():
            raise ConfigError(
                "an episode begins with a token that the policy sampled: nothing comes before it "
                "that could predict it. Begin episodes with a prompt or a start token."
            )
        parts["row_of"].append(np.full(len(computed), name))
        parts["columns"].append(at[num_shared:])
        parts["sources"].append(previous[chosen])
        parts["targets"].append(indices[chosen])
        parts["target_rows"].append(np.full(len(chosen), name))
        parts["target_columns"].append(at[chosen])
        ends[name] = indices[end_of_own - 1]
        num_tokens += len(computed)
    tensors = {field: torch.from_numpy(np.concatenate(arrays)) for field, arrays in parts.items()}
    return Pack(
        rows=torch.tensor(rows),
        lengths=tuple(lengths),
        prefixes=tuple(map(torch.from_numpy, prefixes)),
        ends=torch.from_numpy(ends),
        **tensors,
    )
