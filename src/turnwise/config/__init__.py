"""All settings: plain dataclasses, a YAML file, and dotted overrides.

>>> config = ConfigStore()
>>> config.training.learning_rate = 3e-5
>>> config.validate().training.learning_rate
3e-05

A misspelt name is an error when it is set, not a setting that silently does nothing. `sections.py`
and `environment.py` define the sections, `store.py` reads and writes them.
"""

from turnwise.config.environment import (
    EnvironmentConfig as EnvironmentConfig,
    EnvironmentItem as EnvironmentItem,
    PolicyItem as PolicyItem,
    RewardItem as RewardItem,
)
from turnwise.config.sections import (
    CheckpointConfig as CheckpointConfig,
    DatasetConfig as DatasetConfig,
    InferenceConfig as InferenceConfig,
    LimitsConfig as LimitsConfig,
    LoggingConfig as LoggingConfig,
    ModelConfig as ModelConfig,
    RayConfig as RayConfig,
    TrainingConfig as TrainingConfig,
)
from turnwise.config.store import (
    RUN as RUN,
    ConfigStore as ConfigStore,
    find_config as find_config,
    setting_types as setting_types,
)
