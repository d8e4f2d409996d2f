"""The trainer: the loop, evaluation, warm start, curriculum and progress reports."""

from turnwise.trainer.reporter import (
    Callback as Callback,
    LogReporter as LogReporter,
    Metrics as Metrics,
    Reporter as Reporter,
    RunInfo as RunInfo,
)
from turnwise.trainer.rollout import Curriculum as Curriculum, Levels as Levels
from turnwise.trainer.state import load_trained_model as load_trained_model
from turnwise.trainer.trainer import RayPPOTrainer as RayPPOTrainer, Trainer as Trainer
