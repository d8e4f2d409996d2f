"""Episodes laid end to end up to a token budget: no padding is ever computed.

A batch is rows [B, T] in which an attention mask says which columns hold tokens. A pack is a few
of its rows as one line of tokens; positions restart with each episode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from turnwise.errors import ConfigError


@dataclass(frozen=True)
class Pack:
    """Some episodes of a batch, end to end: N tokens, of which the policy sampled M."""

    rows: torch.Tensor
    """[b], which rows of the batch they are, ascending."""
    lengths: tuple[int, ...]
    """Tokens of each episode."""
    row_of: torch.Tensor
    """[N], the episode of each token, from 0 to b."""
    columns: torch.Tensor
    """[N], the column of the batch in which each token stands."""
    positions: torch.Tensor
    """[N], how far each token is into its episode."""
    sources: torch.Tensor
    """[M], the token before each policy token: what is computed there predicts it."""
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
        """The same on another device."""
        names = ("rows", "row_of", "columns", "positions", "sources", "targets", "ends")
        moved = {name: getattr(self, name).to(device, non_blocking=True) for name in names}
        return Pack(lengths=self.lengths, **moved)

    def take(self, grid: torch.Tensor) -> torch.Tensor:
        """The tokens' values of a batch's [B, T] tensor: [N]."""
        return grid[self.rows[self.row_of], self.columns]

    def spread(self, values: torch.Tensor, width: int) -> torch.Tensor:
        """Values of the policy tokens [M] in the rows of these episodes: [b, T], 0 elsewhere."""
        grid = values.new_zeros(len(self.lengths), width)
        return grid.index_put((self.row_of[self.targets], self.columns[self.targets]), values)


def assign_to_packs(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Which episodes go together: the longest first, each into the first pack that has room.

    An episode that is longer than the budget has a pack of its own.

    >>> assign_to_packs([3, 9, 5, 2], budget=8)
    [[1], [0, 2], [3]]
    """
    if budget < 1:
        raise ConfigError(f"micro_batch_tokens got {budget}, expected a number from 1 up")
    packs: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        length = lengths[index]
        place = next((p for p, left in enumerate(room) if left >= length), None)
        if place is None:
            packs.append([])
            room.append(budget)
            place = len(packs) - 1
        packs[place].append(index)
        room[place] -= length
    return [sorted(pack) for pack in packs]


def make_packs(
    attention_mask: torch.Tensor,
    response_mask: torch.Tensor,
    rows: torch.Tensor,
    budget: int,
) -> list[Pack]:
    """Pack these rows of a batch; rows without a token are left out.

    attention_mask, response_mask: [B, T] bool on the CPU; rows: [b].
    """
    lengths = attention_mask[rows].sum(1)
    rows = rows[lengths > 0]
    lengths = lengths[lengths > 0]
    groups = assign_to_packs(lengths.tolist(), budget)
    return [_pack(attention_mask, response_mask, rows[group].sort().values) for group in groups]


def _pack(attention_mask: torch.Tensor, response_mask: torch.Tensor, rows: torch.Tensor) -> Pack:
    present = attention_mask[rows]
    lengths = present.sum(1)
    ends = lengths.cumsum(0)
    # Row by row, so that the episodes come one after the other.
    row_of, columns = present.nonzero(as_tuple=True)
    positions = torch.arange(len(columns)) - (ends - lengths)[row_of]
    targets = response_mask[rows][row_of, columns].nonzero().squeeze(1)
    if bool((positions[targets] == 0).any()):
        raise ConfigError(
            "an episode begins with a token that the policy sampled: nothing comes before it that "
            "could predict it. Begin episodes with a prompt or a start token."
        )
    return Pack(
        rows=rows,
        lengths=tuple(lengths.tolist()),
        row_of=row_of,
        columns=columns,
        positions=positions,
        sources=targets - 1,
        targets=targets,
        ends=ends - 1,
    )
