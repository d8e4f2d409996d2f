"""Remainders: where the bits of a function of each element depend on how many there are.

Torch computes vectors of elements, and the remainder of a tensor by other code, whose `silu`,
`gelu` or `sigmoid` rounds differently. A tensor that several threads compute has a remainder in
each thread's part.
"""

from __future__ import annotations

import torch

VECTOR = 64
"""A multiple of the elements that torch computes at once, on any processor and in any data type."""
GRAIN = 32768
"""Elements that torch does not split among threads (`at::internal::GRAIN_SIZE`)."""


def has_remainder(num_elements: int) -> bool:
    """Return whether torch computes some of so many elements, one after the other, as a remainder.

    >>> has_remainder(64), has_remainder(100)
    (False, True)
    """
    num_parts = min(torch.get_num_threads(), -(-num_elements // GRAIN))
    return bool(num_elements % VECTOR or -(-num_elements // num_parts) % VECTOR)
