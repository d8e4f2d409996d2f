"""Callbacks: a user's own code between the steps of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwise.errors import ConfigError

if TYPE_CHECKING:
    from turnwise.trainer.trainer import Trainer

EVENTS = ("on_step", "on_evaluation", "on_save")


class Callback:
    """What a callback may do. Any object with one of these methods is one; none is required.

    All are called in the thread of `fit`, between two steps. `trainer.stop()` ends the run after
    them, an exception stops it with an error.
    """

    def on_step(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        """Called after each step with all its metrics, when they are written."""

    def on_evaluation(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        """Called after an evaluation with its metrics: `eval/greedy/reward` ..."""

    def on_save(self, trainer: Trainer, path: Path) -> None:
        """Called with the folder of a checkpoint, when it is written."""


def checked_callbacks(callbacks: Any) -> list[Any]:
    """Return the callbacks as a list; raise for what has none of the methods."""
    if not isinstance(callbacks, Iterable):
        name = type(callbacks).__name__
        raise ConfigError(f"callbacks got {name}, expected a list: callbacks=[{name}()]")
    given = list(callbacks)
    for callback in given:
        if isinstance(callback, type):
            name = callback.__name__
            raise ConfigError(
                f"callbacks got the class {name}, expected an object of it: callbacks=[{name}()]"
            )
        if not any(callable(getattr(callback, event, None)) for event in EVENTS):
            raise ConfigError(
                f"callbacks got {callback!r:.80}, which has none of the methods "
                f"{', '.join(EVENTS)}. For example: def on_step(self, trainer, metrics)."
            )
    return given
