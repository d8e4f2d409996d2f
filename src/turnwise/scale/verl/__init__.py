"""VERL: its trainers run a user's environment unchanged. The only place that knows VERL."""

from turnwise.compat.rewards import EnvironmentRewardWrapper
from turnwise.scale.verl.dataset import CustomEnvironmentDataset
from turnwise.scale.verl.settings import to_verl_config
from turnwise.scale.verl.trainer import CustomRayPPOTrainer

__all__ = [
    "CustomEnvironmentDataset",
    "CustomRayPPOTrainer",
    "EnvironmentRewardWrapper",
    "to_verl_config",
]
