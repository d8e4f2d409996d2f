"""The files that VERL writes into a run folder: its log of metrics and its checkpoints."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from turnwise.errors import CheckpointError, ConfigError, TrainingStopped

METRICS_LOG = "verl-metrics.jsonl"
_LOG = logging.getLogger("turnwise")


def take_metrics(run_folder: Path) -> list[tuple[int, dict[str, Any]]]:
    """Return what VERL's file logger wrote, as steps with their metrics, and remove the file.

    A line that cannot be read, such as the half line of a killed process, is logged and left out.
    """
    path = run_folder / METRICS_LOG
    if not path.exists():
        return []
    entries = []
    # In bytes, whose lines end with line feeds alone: JSON may contain U+2028 and the like.
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            entry = json.loads(line)
            entries.append((int(entry["step"]), dict(entry["data"])))
        except (ValueError, TypeError, KeyError):
            _LOG.warning("%s, line %d: no metrics of a step, left out: %.80s", path, number, line)
    path.unlink()
    return entries


def take_evaluation(run_folder: Path) -> dict[str, float]:
    """Return the metrics that VERL's evaluation logged last, its means under short names too."""
    logged = take_metrics(run_folder)
    if not logged:
        raise TrainingStopped("VERL's evaluation logged no metrics. Look at its output above.")
    metrics = logged[-1][1]
    means = {k.split("/")[-2]: v for k, v in metrics.items() if k.endswith("/mean@1")}
    return {**means, **metrics}


def newest_checkpoint(run_folder: Path) -> Path:
    """Return the folder of VERL's newest checkpoint."""
    folder, step = run_folder / "verl", newest_step(run_folder)
    if not step:
        raise ConfigError(f"VERL has saved nothing in {folder}. See checkpoint.save_interval.")
    return folder / f"global_step_{step}"


def newest_step(run_folder: Path) -> int:
    """Return the step of VERL's newest checkpoint; 0 if there is none."""
    latest = run_folder / "verl" / "latest_checkpointed_iteration.txt"
    if not latest.exists():
        return 0
    text = latest.read_text(errors="replace").strip()
    if not text.isdecimal():
        raise CheckpointError(
            f"{latest} got {text!r:.80}, expected the step of VERL's newest checkpoint. Write the "
            f"number of the newest folder global_step_N in {latest.parent} into it, or remove it "
            "to begin anew."
        )
    return int(text)
