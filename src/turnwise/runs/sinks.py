"""Sends metrics to TensorBoard, Weights & Biases, MLflow and trackio.

None needs a login, and none can stop or slow down a run: each works in a thread of its own, and one
that fails is logged once and dropped.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from turnwise.errors import ConfigError, did_you_mean
from turnwise.runs.sink_adapters import MLflow, Sink, TensorBoard, Trackio, WandB

SINKS: dict[str, type[Sink]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MLflow,
    "trackio": Trackio,
}

# Metrics that are not sent by then are lost.
_CLOSE_SECONDS = 8.0

_LOG = logging.getLogger("turnwise")


def check_sinks(names: Sequence[str]) -> None:
    """Raise `ConfigError` for an unknown sink."""
    for name in names:
        if name not in SINKS:
            raise ConfigError(
                f"logging.sinks got {name!r}, which is no sink. {did_you_mean(name, SINKS)}"
            )


def make_sinks(
    names: Sequence[str], run_folder: Path, run_name: str, config: Mapping[str, Any]
) -> Sinks:
    """Return the sinks of these names; a missing package raises now, not during the run."""
    check_sinks(names)
    return Sinks(
        {name: SINKS[name](Path(run_folder), run_name, config) for name in dict.fromkeys(names)}
    )


class Sinks:
    """The sinks of a run."""

    def __init__(self, sinks: Mapping[str, Sink]) -> None:
        self._workers = [_Worker(name, sink) for name, sink in sinks.items()]

    def log(self, step: int, metrics: Mapping[str, float | int | str | bool]) -> None:
        """Queue the metrics of a step for all sinks, without waiting."""
        numbers = {
            name: float(value)
            for name, value in metrics.items()
            if not isinstance(value, str) and math.isfinite(value) and name != "step"
        }
        for worker in self._workers:
            worker.tasks.put((step, numbers))

    def close(self) -> None:
        """Wait up to 8 seconds until everything is sent; may be called twice."""
        for worker in self._workers:
            worker.tasks.put(None)
        end = time.monotonic() + _CLOSE_SECONDS
        for worker in self._workers:
            worker.join(max(0.0, end - time.monotonic()))
            if worker.is_alive():
                _LOG.warning(
                    "%s did not finish in time; its last steps may be missing", worker.name
                )
        self._workers = []


class _Worker(threading.Thread):
    """The thread of one sink; a daemon, so that a hanging sink does not keep the process alive."""

    def __init__(self, name: str, sink: Sink) -> None:
        super().__init__(name=name, daemon=True)
        self.tasks: queue.SimpleQueue[tuple[int, dict[str, float]] | None] = queue.SimpleQueue()
        self._sink = sink
        self.start()

    def run(self) -> None:
        try:
            is_open = False
            while (task := self.tasks.get()) is not None:
                step, numbers = task
                if not is_open:
                    self._sink.open(step)
                    is_open = True
                self._sink.log(step, numbers)
            if is_open:
                self._sink.close()
        except (Exception, SystemExit) as error:
            _LOG.warning(
                "%s failed and gets no more metrics: %s: %s. metrics.jsonl has them all.",
                *(self.name, type(error).__name__, error),
            )
