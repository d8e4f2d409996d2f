"""The KV cache: one block of memory, allocated in contiguous regions.

The engine's thread owns it.
"""

import logging
import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import torch

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Segment:
    """New tokens of one sequence, and where its cache lies."""

    region: int
    """Start of the sequence's region in the KV cache."""
    past: int
    """Tokens of it that are in the cache already."""
    num_new: int
    """Tokens of it that are computed now."""


class KVCache:
    """Keys and values of all layers, [2, layers, tokens, heads, width], and which regions are free.

    A region is contiguous, so that attention reads it without gathering; its size is a power of
    two times `UNIT` (a buddy allocator: freed halves join again). Nothing is ever allocated outside
    of it, so the cache cannot grow past its budget: `num_tokens`, or `max_tokens` where it begins
    smaller and grows when it is full.
    """

    UNIT = 64
    """Tokens in the smallest region."""

    def __init__(
        self,
        num_tokens: int,
        num_layers: int,
        num_heads: int,
        width: int,
        dtype: torch.dtype,
        device: torch.device,
        max_tokens: int | None = None,
    ) -> None:
        num_units = max(num_tokens // self.UNIT, 1)
        self.num_tokens = num_units * self.UNIT
        self._most_units = max((max_tokens or num_tokens) // self.UNIT, num_units)
        # One unit more, for scratch: rows that pad a batch write there.
        shape = (2, num_layers, self.num_tokens + self.UNIT, num_heads, width)
        self.storage = _zeros(shape, dtype, device)
        self.keys: Sequence[torch.Tensor] = self.storage[0].unbind()
        self.values: Sequence[torch.Tensor] = self.storage[1].unbind()
        """Of each layer, views [tokens, heads, width]."""
        self.num_moves = 0
        """How often it grew, which invalidates captured graphs."""
        self._free: dict[int, set[int]] = {}
        """Starts of the free regions, by size in units."""
        self._roots: dict[int, int] = {}
        """Starts and sizes of the regions that were never split."""
        self._allocated: dict[int, int] = {}
        """Size in units of each allocated region, by its start in units."""
        start = 0
        for bit in reversed(range(num_units.bit_length())):  # the largest powers of two first
            size = 1 << bit
            if num_units & size:
                self._roots[start] = size
                self._free.setdefault(size, set()).add(start)
                start += size

    @property
    def scratch(self) -> int:
        """Return where the scratch unit starts, which padding rows write to."""
        return self.num_tokens

    @property
    def largest(self) -> int:
        """Tokens of the largest possible region."""
        largest = max(self._roots.values())
        num_units = self.num_tokens // self.UNIT
        while size := self._next_root(num_units):
            largest = max(largest, size)
            num_units += size
        return largest * self.UNIT

    @property
    def num_allocated(self) -> int:
        """Return how many tokens all allocated regions hold."""
        return sum(self._allocated.values()) * self.UNIT

    def alloc(self, num_tokens: int) -> int | None:
        """Allocate a region of at least so many tokens; return its start, or None if full."""
        size = 1 << max(-(-num_tokens // self.UNIT) - 1, 0).bit_length()
        while not (sizes := [s for s, starts in self._free.items() if s >= size and starts]):
            if not self._grow():
                return None
        free_size = min(sizes)
        # The lowest first, so that allocation does not depend on the order of a set.
        start = min(self._free[free_size])
        self._free[free_size].remove(start)
        while free_size > size:
            free_size //= 2
            self._free.setdefault(free_size, set()).add(start + free_size)
        self._allocated[start] = size
        return start * self.UNIT

    def _next_root(self, num_units: int) -> int:
        """Return the units by which a cache of so many grows: it doubles, within the budget."""
        left = min(self._most_units - num_units, num_units)
        return 1 << (left.bit_length() - 1) if left > 0 else 0

    def _grow(self) -> bool:
        """Move to a larger block; return False if the budget allows no more."""
        start = self.num_tokens // self.UNIT
        size = self._next_root(start)
        if not size:
            return False
        kept, before = self.num_tokens, self.storage
        num_tokens = kept + size * self.UNIT
        shape = (*before.shape[:2], num_tokens + self.UNIT, *before.shape[3:])
        try:
            self.storage = _zeros(shape, before.dtype, before.device)
        except torch.OutOfMemoryError:
            _log.warning("no memory to grow the KV cache past %d tokens; it stays so", kept)
            self._most_units = start
            return False
        self.num_tokens = num_tokens
        self.storage[:, :, :kept] = before[:, :, :kept]
        self.keys, self.values = self.storage[0].unbind(), self.storage[1].unbind()
        self.num_moves += 1
        self._roots[start] = size
        self._free.setdefault(size, set()).add(start)
        return True

    def capacity(self, start: int) -> int:
        """Return how many tokens an allocated region holds."""
        return self._allocated[start // self.UNIT] * self.UNIT

    def free(self, start: int) -> None:
        unit = start // self.UNIT
        size = self._allocated.pop(unit)
        while unit not in self._roots or self._roots[unit] != size:
            root = max(r for r in self._roots if r <= unit)
            buddy = root + ((unit - root) ^ size)
            if buddy not in self._free.get(size, ()):
                break
            self._free[size].remove(buddy)
            unit, size = min(unit, buddy), size * 2
        self._free.setdefault(size, set()).add(unit)

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first tokens of a region into another one."""
        self.storage[:, :, target : target + length] = self.storage[:, :, source : source + length]


def _zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
    """Return zeros; on a CPU in pages that take no memory before they are first written."""
    if torch.device(device).type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    pages = mmap.mmap(-1, math.prod(shape) * dtype.itemsize)
    return torch.frombuffer(pages, dtype=dtype).view(shape)
