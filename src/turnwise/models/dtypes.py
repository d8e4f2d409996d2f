"""Warns of data types that a processor emulates in software, which is slow."""

from __future__ import annotations

import logging
import time
import warnings
from functools import cache
from typing import Any

import torch

_log = logging.getLogger(__name__)

_SLOW = 8.0
"""Slowdown compared with float32 that is reported; emulation is 50 to 200 times as slow."""


def warn_if_emulated(model: Any) -> None:
    """Log one warning for each data type whose matrix products a CPU emulates."""
    parameter = next(iter(model.parameters()), None)
    if parameter is not None and parameter.device.type == "cpu" and parameter.is_floating_point():
        _warn_once(parameter.dtype)


@cache
def _warn_once(dtype: torch.dtype) -> None:
    if (times := cost_of_products(dtype)) >= _SLOW:
        name = str(dtype).removeprefix("torch.")
        _log.warning(
            "This processor has no fast instructions for %s: a matrix product takes %.0f times as "
            "long as in float32. On this CPU use dtype float32, which auto chooses.",
            name,
            times,
        )


@cache
def cost_of_products(dtype: torch.dtype) -> float:
    """Return the time of a small matrix product relative to float32.

    It is measured (some milliseconds), since the kernels depend on torch's build, the processor
    and the shape.
    """
    if dtype in (torch.float32, torch.float64):
        return 1.0
    return _seconds(dtype) / _seconds(torch.float32)


def _seconds(dtype: torch.dtype) -> float:
    """Return the shortest of a few runs."""
    rows, weight = torch.ones(32, 128, dtype=dtype), torch.ones(128, 128, dtype=dtype)
    times = []
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch prints a stack trace of its fallback
        for _ in range(4):
            start = time.perf_counter()
            torch.nn.functional.linear(rows, weight)
            times.append(time.perf_counter() - start)
    return min(times)
