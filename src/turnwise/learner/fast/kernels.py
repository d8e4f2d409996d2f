"""Which of the Triton kernels can be used on a device.

Kernels are imported only where they run. They are used only if they compute what torch does on a
small example: compilers and drivers differ.
"""

from __future__ import annotations

import logging
from functools import cache
from importlib import import_module
from typing import Any

import torch

from turnwise.models.probing import is_out_of_memory

_LOG = logging.getLogger("turnwise")


@cache
def load_kernels(name: str, dtype: torch.dtype, device: torch.device) -> Any:
    """Return the module of kernels of this name, or None, with a warning, where torch computes."""
    try:
        kernels = import_module(f"turnwise.learner.fast.{name}")
        if kernels.is_exact(dtype, device):
            return kernels
        problem = "their results differ from torch's"
    except Exception as error:  # Triton, its compiler and the driver raise errors of many kinds
        if is_out_of_memory(error):
            raise
        problem = f"{type(error).__name__}: {error}"
    _LOG.warning("the learner computes without %s, which is slower: %s", name, problem)
    return None
