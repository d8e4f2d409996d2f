"""The trainer: the loop, evaluation, warm start, curriculum and progress reports."""

from turnwise.trainer.reporter import Callback, LogReporter, Metrics, Reporter, RunInfo
from turnwise.trainer.rollout import Curriculum, Levels
from turnwise.trainer.state import load_trained_model
from turnwise.trainer.trainer import RayPPOTrainer, Trainer

__all__ = [
    "Callback",
    "Curriculum",
    "Levels",
    "LogReporter",
    "Metrics",
    "RayPPOTrainer",
    "Reporter",
    "RunInfo",
    "Trainer",
    "load_trained_model",
]
