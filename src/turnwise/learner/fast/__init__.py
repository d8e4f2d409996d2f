"""What makes an update fast: episodes end to end, and kernels for a GPU.

- `packed_attention.py`: episodes laid end to end without padding; a shared prefix is computed once.
- `modules.py`: the modules of a model that have kernels: gated MLPs, RMS norms, rotary embeddings.
- `kernels.py` and `adam_kernels.py` are written in Triton, and imported only where they run. They
  are used only if they compute what torch does on small examples: compilers and drivers differ.
"""

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
    _LOG.warning("the learner computes without its %s, which is slower: %s", name, problem)
    return None
