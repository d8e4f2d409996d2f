"""`create_trainer`: a trainer in one process, on a Ray cluster, or VERL's own."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnwise.config import ConfigStore
from turnwise.env.catalog import EnvironmentSource
from turnwise.errors import ConfigError, did_you_mean
from turnwise.reward import RewardFn
from turnwise.scale.verl import CustomRayPPOTrainer
from turnwise.trainer.trainer import Trainer

ENGINES = ("local", "ray", "verl")


def create_trainer(
    config: ConfigStore | Mapping[str, Any] | str | Path | None,
    environment: EnvironmentSource | None = None,
    reward_fn: RewardFn | None = None,
    tokenizer: Any = None,
    engine: str = "local",
    **options: Any,
) -> Trainer | CustomRayPPOTrainer:
    """Return a trainer; `options` are those of `Trainer`, with "verl" of `CustomRayPPOTrainer`.

    "local" follows the settings, so with `ray.use_ray` it runs on Ray too.
    """
    if engine not in ENGINES:
        raise ConfigError(f"engine got {engine!r}. {did_you_mean(engine, ENGINES)}")
    if engine == "verl":
        return CustomRayPPOTrainer(config, environment, reward_fn, tokenizer=tokenizer, **options)
    if engine == "ray":
        config = copy.deepcopy(ConfigStore.of(config))
        config.ray.use_ray = True
    return Trainer(config, environment, reward_fn, tokenizer=tokenizer, **options)
