"""The headline of a run: its main metric, and the episodes that were averaged.

All commands and pages use it, so that they report the same number.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeGuard

Z = 1.959964
"""Standard deviations on each side of a mean that contain 95 % of a normal distribution."""


@dataclass(frozen=True)
class Headline:
    """A metric of a run, and the episodes that were averaged."""

    metric: str
    """`success`, or `reward` where the environment does not report success."""
    value: float
    step: int
    over: str
    """`64 greedy episodes on held-out seeds`, or `the 32 training episodes of this step`."""
    low: float | None = None
    high: float | None = None
    """The 95 % interval of the mean, if known."""

    @property
    def number(self) -> str:
        """The formatted value: `0.250`."""
        return f"{self.value:.3f}"

    @property
    def about(self) -> str:
        """The text after the number: interval, step and episodes."""
        interval = "" if self.low is None else f"({self.low:.3f} to {self.high:.3f}) "
        return f"{interval}after step {self.step:,}: {self.over}"

    def __str__(self) -> str:
        return f"{self.metric} {self.number} {self.about}"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and the formatted texts."""
        return {**asdict(self), "number": self.number, "about": self.about, "text": str(self)}


def headline(
    history: Sequence[Mapping[str, Any]],
    evaluated_on: str | None = None,
    *,
    step: int | None = None,
) -> Headline | None:
    """Return the newest greedy evaluation of a run; without one, the training episodes of its
    last step. None: there are neither.

    `evaluated_on` is what `run.json` records about its evaluations; None: it has no such record.
    With `step`, the headline is of that step alone, as for the model that was saved after it.

    >>> print(headline([{"step": 4, "success": 0.25, "reward": 0.5, "num_episodes": 32}]))
    success 0.250 (0.133 to 0.421) after step 4: the 32 training episodes of this step
    """
    kind = "success" if reports_success(history) else "reward"
    for prefix in ("eval/greedy/", ""):
        for metrics in reversed(history):
            is_asked_for = step is None or metrics.get("step") == step
            if not is_asked_for or not is_number(value := metrics.get(prefix + kind)):
                continue
            number = metrics.get(f"{prefix}num_episodes")
            many = f"{number:,.0f} " if is_number(number) else ""
            over = f"the {many}training episodes of this step"
            if prefix:
                over = f"{many}greedy episodes on {evaluated_on or 'what the run evaluates on'}"
            low, high = interval(metrics, prefix + kind) or (None, None)
            return Headline(kind, value, int(metrics.get("step", 0)), over, low, high)
    return None


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is a finite number; a copied file may have text instead."""
    return isinstance(value, int | float) and math.isfinite(value)


def reports_success(history: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether any step has a success: an environment may report none."""
    names = ("success", "eval/greedy/success", "eval/sampled/success")
    return any(is_number(metrics.get(name)) for metrics in history for name in names)


def interval(metrics: Mapping[str, Any], name: str) -> tuple[float, float] | None:
    """Return the 95 % interval of a success or a reward, from the number of episodes of its step.

    If several episodes share a seed or a row, the number of groups counts, since episodes of a
    group are not independent; the interval is then at least as wide as it should be. None if the
    number is unknown, and for a mix of environments, whose mean is weighted.
    """
    prefix, _, kind = name.rpartition("/")
    prefix = f"{prefix}/" if prefix else ""
    number = metrics.get(f"{prefix}num_groups", metrics.get(f"{prefix}num_episodes"))
    spread = metrics.get(f"{prefix}reward_std")
    is_mix = any(key.count("/") == 3 and key.startswith("eval/") for key in metrics)
    if not is_number(number) or number < 1 or is_mix:
        return None
    if kind == "success":
        rate = metrics[name]
        return wilson_interval(rate, int(number)) if 0 <= rate <= 1 else None
    if kind != "reward" or not is_number(spread):
        return None
    margin = Z * spread / math.sqrt(number)
    return metrics[name] - margin, metrics[name] + margin


def wilson_interval(rate: float, number: int) -> tuple[float, float]:
    """Return the 95 % Wilson interval of a rate, which is valid near 0 and 1 too.

    >>> low, high = wilson_interval(1.0, 100)
    >>> round(low, 3), round(high, 3)
    (0.963, 1.0)
    """
    square = Z**2 / number
    middle = (rate + square / 2) / (1 + square)
    reach = Z / (1 + square) * math.sqrt(rate * (1 - rate) / number + square / (4 * number))
    return (middle - reach if rate else 0.0), (middle + reach if rate < 1 else 1.0)


def policy_movement(metrics: Mapping[str, float]) -> list[str]:
    """Return the metrics of a step that show how the policy moved, the most informative first.

    >>> policy_movement({"kl": 1e-13, "grad_norm": 0.7, "num_steps": 1})
    ['grad_norm']
    """
    names = ["kl_ref", "kl", "grad_norm"]
    if not kl_is_informative([metrics]):
        names.remove("kl")
    return [name for name in names if name in metrics]


def kl_is_informative(history: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the KL to the sampling policy shows how far the updates moved the policy.

    It does if a batch has several optimizer steps. With one step, the trained policy is still the
    one that sampled, and the KL is 0 up to rounding. `kl_ref`, the KL to a reference model, is
    always informative.

    >>> kl_is_informative([{"kl": 1e-13, "num_steps": 1}]), kl_is_informative([{"num_steps": 4}])
    (False, True)
    """
    counts = (metrics.get("num_steps") for metrics in history)
    return any(is_number(count) and count >= 2 for count in counts)
