"""The trainer: the loop, evaluation, checkpoints, metrics, warm start.

Names are looked up when they are first used: who only reads a run's files needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnwise.trainer.checkpoints import Checkpoint, CheckpointStore, open_checkpoint
    from turnwise.trainer.curriculum import Curriculum, Levels
    from turnwise.trainer.reporter import LogReporter, Metrics, Reporter, RunInfo
    from turnwise.trainer.state import load_trained_model
    from turnwise.trainer.trainer import RayPPOTrainer

__all__ = [
    "Checkpoint",
    "CheckpointStore",
    "Curriculum",
    "Levels",
    "LogReporter",
    "Metrics",
    "RayPPOTrainer",
    "Reporter",
    "RunInfo",
    "load_trained_model",
    "open_checkpoint",
]

_HOMES = {
    "checkpoints": ("Checkpoint", "CheckpointStore", "open_checkpoint"),
    "curriculum": ("Curriculum", "Levels"),
    "reporter": ("LogReporter", "Metrics", "Reporter", "RunInfo"),
    "state": ("load_trained_model",),
    "trainer": ("RayPPOTrainer",),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"turnwise.trainer.{home}"), name)
    raise AttributeError(f"turnwise.trainer has no {name!r}")
