"""`best.json`: the best checkpoint of a run, and the metric that it is best by."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from turnwise.runs.manifest import Defect, is_step, read_sealed_json


@dataclass(frozen=True)
class BestMark:
    """The step of the best checkpoint, and its metric."""

    step: int
    metric: str
    value: float
    low: float | None = None
    high: float | None = None
    """The 95 % interval of the value, if known."""
    num_episodes: int | None = None
    """The number of episodes that were averaged, if known."""

    @property
    def about(self) -> str:
        """The metric, its value and its interval.

        >>> BestMark(4, "eval/greedy/reward", 0.5, 0.25, 0.75, 16).about
        'the best by eval/greedy/reward: 0.5 (0.25 to 0.75, 16 episodes)'
        """
        known = []
        if self.low is not None:
            known.append(f"{self.low:.4g} to {self.high:.4g}")
        if self.num_episodes is not None:
            known.append(f"{self.num_episodes:,} episodes")
        more = f" ({', '.join(known)})" if known else ""
        return f"the best by {self.metric}: {self.value:.4g}{more}"

    def __str__(self) -> str:
        return f"step {self.step:,}, {self.about}"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and the formatted texts."""
        return {**asdict(self), "about": self.about, "text": str(self)}


def read_best_mark(folder: Path) -> BestMark | None:
    """Return the content of `best.json` in a folder of checkpoints; None if there is none.

    It takes no lock. The checkpoint itself may have been removed.
    """
    try:
        content = read_sealed_json(folder / "best.json")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Defect(f"best.json: {error.strerror}") from error
    found: dict[str, Any] = {field.name: content.get(field.name) for field in fields(BestMark)}
    has_interval = _is_number(found["low"]) and _is_number(found["high"])
    if not has_interval:
        found["low"] = found["high"] = None
    if not is_step(found["num_episodes"]):
        found["num_episodes"] = None
    is_mark = isinstance(found["metric"], str) and _is_number(found["value"])
    if not (is_mark and is_step(found["step"])):
        raise Defect("best.json: it does not say which checkpoint is the best")
    return BestMark(**found)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
