"""The trainer: the loop, evaluation, checkpoints, metrics, warm start."""

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
