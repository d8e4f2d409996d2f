"""What makes an update fast: episodes end to end, and kernels for a GPU.

- `packed_attention.py`: episodes laid end to end without padding; a shared prefix is computed once.
- `modules.py`: the modules of a model that have kernels: gated MLPs, RMS norms, rotary embeddings.
- `kernels.py` and `adam_kernels.py` are written in Triton, and imported only where they run.
"""

import logging
import os
from functools import cache
from importlib import import_module
from typing import Any

from turnwise.errors import describe_error


@cache
def load_kernels(name: str) -> Any:
    """Return the module of kernels of this name; None, with a warning, where Triton fails."""
    try:
        runtime = import_module("triton.runtime")
        if os.environ.get("TRITON_INTERPRET") != "1":  # which runs without a device
            runtime.driver.active.get_current_device()  # needs a compiler
    except Exception as error:  # Triton, its compiler and the driver raise errors of many kinds
        logging.getLogger("turnwise").warning(
            "the learner computes without its %s, which is slower: %s", name, describe_error(error)
        )
        return None
    return import_module(f"turnwise.learner.fast.{name}")
