"""All settings: plain dataclasses, a YAML file, and dotted overrides.

>>> config = ConfigStore()
>>> config.training.learning_rate = 3e-5
>>> config.validate().training.learning_rate
3e-05

A misspelt name is an error when it is set, not a setting that silently does nothing. `sections.py`,
`training.py` and `environment.py` define the sections, `store.py` reads and writes them.
"""

from turnwise.config.environment import (
    EnvironmentConfig,
    EnvironmentItem,
    PolicyItem,
    RewardItem,
    part_names,
)
from turnwise.config.fields import Positive, Probability, Seconds, Section, setting
from turnwise.config.sections import (
    CheckpointConfig,
    DatasetConfig,
    InferenceConfig,
    LimitsConfig,
    LoggingConfig,
    ModelConfig,
    RayConfig,
)
from turnwise.config.store import RUN, ConfigStore, find_config, setting_types
from turnwise.config.training import LossAggregation, TrainingConfig

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
    "LossAggregation",
    "ModelConfig",
    "PolicyItem",
    "Positive",
    "Probability",
    "RayConfig",
    "RewardItem",
    "Seconds",
    "Section",
    "TrainingConfig",
    "find_config",
    "part_names",
    "setting",
    "setting_types",
]
