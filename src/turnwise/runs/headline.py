"""The one number that a run is summed up by, and over what it is an average.

Every place that shows how good a run is takes it from here, so that all of them say the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

_Z = 1.959964  # of a 95 % interval


@dataclass(frozen=True)
class Headline:
    """A metric of a run with what it is an average of."""

    metric: str
    """`success`, or `reward` where the environment does not report success."""
    value: float
    step: int
    over: str
    """`64 greedy episodes on held-out seeds`, or `the 32 training episodes of this step`."""
    low: float | None = None
    high: float | None = None
    """The 95 % interval of the mean, where it is known."""

    def __str__(self) -> str:
        interval = "" if self.low is None else f" ({self.low:.3f} to {self.high:.3f})"
        return f"{self.metric} {self.value:.3f}{interval} after step {self.step:,}: {self.over}"

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "text": str(self)}


def headline(
    history: Sequence[Mapping[str, Any]], evaluated_on: str | None = None
) -> Headline | None:
    """Return the newest greedy evaluation of a run; without one, the training episodes of its
    last step. None: there are neither.

    `evaluated_on` is what `run.json` says of its evaluations; older runs do not say it.

    >>> print(headline([{"step": 4, "success": 0.25, "reward": 0.5, "num_episodes": 32}]))
    success 0.250 (0.133 to 0.421) after step 4: the 32 training episodes of this step
    """
    kind = "success" if _reports_success(history) else "reward"
    for prefix in ("eval/greedy/", ""):
        for metrics in reversed(history):
            if (name := prefix + kind) in metrics:
                return _headline(metrics, prefix, kind, name, evaluated_on)
    return None


def _headline(
    metrics: Mapping[str, Any], prefix: str, kind: str, name: str, evaluated_on: str | None
) -> Headline:
    number = metrics.get(f"{prefix}num_episodes")
    many = "" if number is None else f"{number:,.0f} "
    if prefix:
        over = f"{many}greedy episodes on {evaluated_on or 'what the run evaluates on'}"
    else:
        over = f"the {many}training episodes of this step"
    bounds = interval(metrics, name)
    return Headline(kind, metrics[name], int(metrics.get("step", 0)), over, *(bounds or ()))


def _reports_success(history: Sequence[Mapping[str, Any]]) -> bool:
    """Whether an episode ever succeeded; success is 0 in every step of a run that reports none."""
    names = ("success", "eval/greedy/success", "eval/sampled/success")
    return any(metrics.get(name) for metrics in history for name in names)


def interval(metrics: Mapping[str, Any], name: str) -> tuple[float, float] | None:
    """The 95 % interval of a success or a reward, by the number of episodes beside it.

    Where several episodes were played from one start or of one row, it is by the number of these:
    episodes of one row are alike. That is at least as wide as it should be, and exact where they
    all end in the same way. None where the number is not known, and for a mix of environments,
    whose mean is weighted.
    """
    prefix, _, kind = name.rpartition("/")
    prefix = f"{prefix}/" if prefix else ""
    number = metrics.get(f"{prefix}num_groups", metrics.get(f"{prefix}num_episodes"))
    spread = metrics.get(f"{prefix}reward_std")
    is_mix = any(key.count("/") == 3 and key.startswith("eval/") for key in metrics)
    if not number or is_mix:
        return None
    if kind == "success":
        return wilson_interval(metrics[name], int(number))
    if kind != "reward" or spread is None:
        return None
    margin = _Z * spread / math.sqrt(number)
    return metrics[name] - margin, metrics[name] + margin


def wilson_interval(rate: float, number: int) -> tuple[float, float]:
    """Where the true rate is in 95 of 100 cases, by Wilson's formula, which holds near 0 and 1.

    >>> low, high = wilson_interval(1.0, 100)
    >>> round(low, 3), round(high, 3)
    (0.963, 1.0)
    """
    square = _Z**2 / number
    middle = (rate + square / 2) / (1 + square)
    reach = _Z / (1 + square) * math.sqrt(rate * (1 - rate) / number + square / (4 * number))
    return (middle - reach if rate else 0.0), (middle + reach if rate < 1 else 1.0)


def policy_movement(metrics: Mapping[str, float]) -> list[str]:
    """The metrics of a step that show how the policy moved, the most telling first.

    The KL to a reference model, if there is one. The KL to the policy that played says something
    only where an update has several steps of the optimiser: before the first one it is 0.

    >>> policy_movement({"kl": 1e-13, "grad_norm": 0.7, "num_steps": 1})
    ['grad_norm']
    """
    names = ["kl_ref", "kl", "grad_norm"]
    if metrics.get("num_steps", 1) < 2:
        names.remove("kl")
    return [name for name in names if name in metrics]
