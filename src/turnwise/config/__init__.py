"""All settings: plain dataclasses, a YAML file, and dotted overrides.

>>> config = ConfigStore()
>>> config.training.learning_rate = 3e-5
>>> config.validate().training.learning_rate
3e-05

A misspelt name is an error when it is set, not a setting that silently does nothing. `sections.py`
and `environment.py` define the sections, `store.py` reads and writes them.
"""

from turnwise.config.environment import EnvironmentConfig, EnvironmentItem, PolicyItem, RewardItem
from turnwise.config.sections import (
    CheckpointConfig,
    DatasetConfig,
    InferenceConfig,
    LimitsConfig,
    LoggingConfig,
    ModelConfig,
    RayConfig,
    TrainingConfig,
)
from turnwise.config.store import RUN, ConfigStore, find_config, setting_types

__all__ = [
    "RUN",
    "CheckpointConfig",
    "ConfigStore",
    "DatasetConfig",
    "EnvironmentConfig",
    "EnvironmentItem",
    "InferenceConfig",
    "LimitsConfig",
    "LoggingConfig",
    "ModelConfig",
    "PolicyItem",
    "RayConfig",
    "RewardItem",
    "TrainingConfig",
    "find_config",
    "setting_types",
]
