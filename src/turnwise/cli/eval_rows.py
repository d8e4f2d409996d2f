"""The rows that `turnwise eval` plays: those that are held out, or those of one split."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from turnwise.errors import ConfigError

if TYPE_CHECKING:
    from turnwise.trainer.components import UserComponents
    from turnwise.trainer.rollout import Rows


class SplitName(StrEnum):
    """What a run's rows are for."""

    TRAIN = "train"
    EVAL = "eval"


@dataclass(frozen=True)
class EvalRows:
    """Rows to play, and what they are in words."""

    rows: Rows | None
    """None: the environment has no rows, and episodes differ by their seeds."""
    words: str
    """`held-out seeds`, `16 held-out rows`, `984 training rows`."""

    @property
    def is_seeds(self) -> bool:
        return self.rows is None

    def often(self, num_episodes: int) -> str:
        """How often each row is played in so many episodes, in words."""
        num_rows = len(self.rows or ())
        if not num_rows or num_episodes < num_rows:
            return ""
        if num_episodes == num_rows:
            return ", each once"
        if num_rows == 1:
            return " (the interval is over its episodes, and says nothing about other rows)"
        return f", each {num_episodes // num_rows:,} times (intervals are over rows)"


def rows_of_split(parts: UserComponents, split: SplitName | None, name: str = "") -> EvalRows:
    """Return the rows of a split; None: held-out ones, or training rows where there are none.

    `name` is that of an environment of a mix.
    """
    where = f" of {name}" if name else ""
    if split is SplitName.TRAIN:
        if parts.train_rows is None:
            raise ConfigError(
                f"--split train plays the rows that were trained on, and there is no dataset{where}"
                ": episodes differ by their seeds, and evaluations are on seeds that training "
                "never plays. Leave out --split."
            )
        return _counted(parts.train_rows, "training")
    if split is SplitName.EVAL and parts.eval_rows is not None and not parts.holds_rows_out:
        raise ConfigError(
            f"--split eval plays held-out rows, and there are none{where}: all "
            f"{len(parts.eval_rows):,} rows were trained on. To hold rows out, train with "
            "eval_dataset (a file of other rows), or with training.eval_fraction (5 % by default) "
            "and at least 64 different rows. To evaluate on other rows now: --dataset FILE; on the "
            "rows that were trained on: --split train."
        )
    if parts.eval_rows is None or parts.holds_rows_out:
        return EvalRows(parts.eval_rows, parts.evaluates_on)
    return _counted(parts.eval_rows, "training")


def _counted(rows: Rows, kind: str) -> EvalRows:
    return EvalRows(rows, f"{len(rows):,} {kind} row{'' if len(rows) == 1 else 's'}")
