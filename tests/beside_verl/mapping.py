"""Settings as the tests of the mapping write them, and machines to map them for."""

import dataclasses
from pathlib import Path
from typing import Any

from turnwise import ConfigStore
from turnwise.models import model_folder
from turnwise.scale.verl.settings import Resources, to_verl_config

GPU = Resources("/models/tiny", 4096, 4, Path("/runs/one"))
HERE = dataclasses.replace(GPU, model_path=model_folder("tiny"))
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
MODEL = "actor_rollout_ref.model"


def mapped(machine: Resources = GPU, **settings: Any) -> dict[str, Any]:
    """The mapping of a config in which these settings differ: `training__seed=3`."""
    config = ConfigStore()
    for name, value in settings.items():
        section, _, field = name.partition("__")
        setattr(getattr(config, section) if field else config, field or section, value)
    return to_verl_config(config, machine)
