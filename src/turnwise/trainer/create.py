"""The same script on another engine: one process, a Ray cluster, or VERL's own trainer."""

from __future__ import annotations

from typing import Any

from turnwise.config import ConfigStore
from turnwise.env.catalog import EnvironmentSource
from turnwise.errors import ConfigError, did_you_mean
from turnwise.reward import RewardFn
from turnwise.trainer.trainer import RayPPOTrainer

ENGINES = ("local",)


def create_trainer(
    config: ConfigStore,
    environment: EnvironmentSource | None = None,
    reward_fn: RewardFn | None = None,
    tokenizer: Any = None,
    engine: str = "local",
    **options: Any,
) -> RayPPOTrainer:
    """A trainer; `options` are those of `RayPPOTrainer`."""
    if engine not in ENGINES:
        raise ConfigError(f"engine got {engine!r}. {did_you_mean(engine, ENGINES)}")
    return RayPPOTrainer(config, environment, reward_fn, tokenizer=tokenizer, **options)
