"""The figures of an update, gathered on the device and read once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

import torch

from turnwise.algo.types import Metrics

Figure: TypeAlias = torch.Tensor | float

COUNTS = ("num_steps", "num_skipped_steps", "num_early_stops")
"""Told even when they are 0."""


class MetricAccumulator:
    """Sums, weighted means, maxima and counts under their names."""

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}
        self._weighted: dict[str, tuple[torch.Tensor, float]] = {}
        self._maxima: dict[str, torch.Tensor] = {}
        self._counts: Counter[str] = Counter()

    def add(self, name: str, value: torch.Tensor) -> None:
        """One share of a total."""
        value = value.detach().double()
        self._sums[name] = self._sums[name] + value if name in self._sums else value

    def average(self, name: str, value: Figure, weight: float) -> None:
        """One part of a mean."""
        total, weights = self._weighted.get(name, (torch.zeros((), dtype=torch.float64), 0.0))
        value = torch.as_tensor(value, dtype=torch.float64).detach()
        self._weighted[name] = (total.to(value.device) + value * weight, weights + weight)

    def most(self, name: str, value: torch.Tensor) -> None:
        """A maximum so far."""
        value = value.detach().double()
        known = self._maxima.get(name)
        self._maxima[name] = value if known is None else torch.maximum(known, value)

    def note(self, name: str, value: Figure) -> None:
        """A number that is said once."""
        self.average(name, value, 1.0)

    def average_all(self, metrics: Metrics, weight: float) -> None:
        """Each one part of a mean, or of a maximum if it is called so."""
        for name, value in metrics.items():
            if name.endswith("_max"):
                self.most(name, value)
            else:
                self.average(name, value, weight)

    def count(self, name: str, by: int = 1) -> None:
        self._counts[name] += by

    @property
    def num_steps(self) -> int:
        """Steps that the optimiser has made."""
        return self._counts["num_steps"]

    def total(self, name: str) -> torch.Tensor:
        return self._sums.get(name, torch.zeros((), dtype=torch.float64))

    def mean(self, name: str) -> torch.Tensor:
        total, weight = self._weighted[name]
        return total / weight

    def join(self, minibatch: MetricAccumulator, num_tokens: int) -> None:
        """Take in a minibatch of so many tokens, which weigh its totals."""
        for name, value in minibatch._sums.items():
            self.average(name, value, num_tokens)
        self._add_means(minibatch)
        self.count("num_trained_tokens", num_tokens)

    def include(self, measured: MetricAccumulator) -> None:
        """Take in means and maxima over other tokens."""
        self._add_means(measured)

    def _add_means(self, other: MetricAccumulator) -> None:
        for name, (total, weight) in other._weighted.items():
            self.average(name, total / (weight or 1.0), weight)
        for name, value in other._maxima.items():
            self.most(name, value)

    def become_sum(self, parts: Sequence[MetricAccumulator]) -> None:
        """The figures of a whole from those of its parts, this one's among them."""
        self._sums, self._weighted, self._maxima = {}, {}, {}
        for part in parts:
            for name, value in part._sums.items():
                self.add(name, value)
            self._add_means(part)

    def cpu(self) -> MetricAccumulator:
        """The same with its numbers on the CPU: other processes have other devices."""
        other = MetricAccumulator()
        other._sums = {name: value.cpu() for name, value in self._sums.items()}
        other._weighted = {name: (x.cpu(), weight) for name, (x, weight) in self._weighted.items()}
        other._maxima = {name: value.cpu() for name, value in self._maxima.items()}
        return other

    def numbers(self) -> dict[str, float]:
        """All of them as plain numbers, in one transfer."""
        found = {name: total / weight for name, (total, weight) in self._weighted.items()}
        found |= self._maxima
        values = torch.stack(_together(found)).tolist()
        counts = {name: float(self._counts[name]) for name in {*COUNTS, *self._counts}}
        return dict(zip(found, values, strict=True)) | dict(sorted(counts.items()))


def _together(figures: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    device = next((x.device for x in figures.values() if x.is_cuda), torch.device("cpu"))
    return [x.to(device) for x in figures.values()]
