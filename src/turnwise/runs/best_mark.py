"""`best.json` of a run: which checkpoint is the best, and by which metric."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from turnwise.runs.manifest import Defect, is_step, read_sealed_json


@dataclass(frozen=True)
class BestMark:
    """The step of the best checkpoint, and what it is the best by."""

    step: int
    metric: str
    value: float
    low: float | None = None
    high: float | None = None
    """The 95 % interval of the value, where it is known."""
    num_episodes: int | None = None
    """What the value is the mean of, where it is known."""

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
        """Return the fields and the texts, so that a page prints them and formats nothing."""
        return {**asdict(self), "about": self.about, "text": str(self)}


def read_best_mark(folder: Path) -> BestMark | None:
    """Return what `best.json` in a folder of checkpoints says; None where there is none.

    It only reads, and takes no lock. The checkpoint itself may have been removed since.
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
