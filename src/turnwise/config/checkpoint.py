"""The section `checkpoint`."""

from __future__ import annotations

from dataclasses import dataclass

from turnwise.config.fields import Positive, Section, setting


@dataclass
class CheckpointConfig(Section):
    """Where runs are kept and how often they are saved."""

    output_dir: str = setting("runs", "Folder that holds the runs.")
    run_name: str | None = setting(
        None, "The run's own folder in it; null: the environment's name, and a number if needed."
    )
    save_interval: Positive = setting(1, "Epochs between two checkpoints.")
    keep_last_n: Positive = setting(3, "How many of the newest checkpoints are kept.")
    best_metric: str = setting(
        "eval/greedy/reward",
        "The checkpoint in which this metric was highest, the latest among equals, is kept too.",
    )
