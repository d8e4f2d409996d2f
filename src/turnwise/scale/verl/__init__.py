"""VERL: its trainers run a user's environment unchanged. The only place that knows VERL."""

from turnwise.compat.rewards import EnvironmentRewardWrapper as EnvironmentRewardWrapper
from turnwise.scale.verl.dataset import CustomEnvironmentDataset as CustomEnvironmentDataset
from turnwise.scale.verl.settings import to_verl_config as to_verl_config
from turnwise.scale.verl.trainer import CustomRayPPOTrainer as CustomRayPPOTrainer
