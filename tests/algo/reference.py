"""One slow, independent reference for each public function of `turnwise.algo`, by the same name.

They take nested lists of numbers where the functions take tensors, and compute in float64 with
plain loops, from the formulas in the papers and docstrings.
"""

from collections.abc import Callable
from typing import Any

from algo import reference_advantages, reference_losses, reference_tokens

MODULES = (reference_advantages, reference_losses, reference_tokens)


def kl_coefficients(
    value: float, target: float, horizon: float, measured: list[tuple[float, int]]
) -> list[float]:
    """What an adaptive `KLController` says after each (KL, number of samples)."""
    said = []
    for kl, num_samples in measured:
        error = max(-0.2, min(0.2, kl / target - 1))
        value = value + value * error * num_samples / horizon
        said.append(value)
    return said


def reference_of(name: str) -> Callable[..., Any]:
    for module in MODULES:
        if name in vars(module):
            return vars(module)[name]
    raise KeyError(name)
