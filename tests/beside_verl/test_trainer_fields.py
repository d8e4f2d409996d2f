"""Every field of our config: it reaches VERL's config, is used by us, or is refused."""

import shutil

import pytest

from beside_verl.mapping import MODEL, mapped
from turnwise import ConfigError, ConfigStore
from turnwise.models import model_folder
from turnwise.scale.verl.settings import (
    COPIED,
    KNOWN_VALUES,
    UNSUPPORTED,
    find_resources,
    to_verl_config,
)

# Computed from the setting, by `to_verl_config`; most of them are in test_trainer_settings.
COMPUTED = {
    "model.dtype",
    "inference.max_tokens", "inference.max_turns",
    "limits.max_turns", "limits.max_tokens", "limits.max_tokens_per_turn",
    "environment.max_steps",
    "training.num_epochs", "training.steps_per_epoch", "training.max_steps",
    "training.group_size", "training.mini_batch_size", "training.micro_batch_tokens",
    "training.clip_ratio_low", "training.clip_ratio_high", "training.kl_target",
    "training.loss_agg_mode", "training.max_grad_norm", "training.warmup_steps",
    "training.gradient_checkpointing", "training.eval_episodes", "training.eval_steps",
    "training.lora_rank", "training.lora_alpha", "training.lora_target_modules",
    "checkpoint.save_interval", "checkpoint.save_steps",
    "ray.num_learners", "ray.address",
}  # fmt: skip
# What VERL does in any case: a critic is a model of its own, it runs on Ray, keeps no episodes.
ALWAYS = {"training.critic", "ray.use_ray", "logging.episodes_gb"}
# What comes to VERL by way of the machine, not of the settings alone.
BY_MACHINE = {
    "model.model_name", "model.local_path", "checkpoint.output_dir", "checkpoint.run_name"
}  # fmt: skip
# What the trainer or the episodes use themselves, inside VERL's processes.
BY_US = {
    "training.on_error", "training.eval_fraction", "logging.level",
    "reward", "tools", "parser", "system_prompt", "environment.name", "environment.params",
    "limits.max_tool_calls", "limits.max_seconds", "limits.max_observation",
}  # fmt: skip
REFUSED_FIRST = {"agent", "environments"}


def test_every_setting_has_its_way():
    known = {*COPIED, *KNOWN_VALUES, *UNSUPPORTED, *COMPUTED, *ALWAYS, *BY_MACHINE, *BY_US}
    ours = [
        name
        for name, _ in ConfigStore().settings()
        if not name.startswith(("dataset.", "eval_dataset."))
        and not (name.startswith("limits.") and name.endswith("_timeout"))
    ]
    assert sorted(known | REFUSED_FIRST) == sorted(ours)
    assert not UNSUPPORTED & {*COPIED, *COMPUTED}


@pytest.mark.parametrize(
    ("name", "value"),
    [("training.resample", 2), ("model.load_in_4bit", True), ("agent", "agents.py:mine")],
)
def test_what_verl_does_not_have_is_refused(name, value):
    with pytest.raises(ConfigError, match=rf"{name} is .*no such setting"):
        mapped(**{name.replace(".", "__"): value})


def test_the_machine_brings_the_model_and_the_folder(tmp_path):
    config = ConfigStore()
    assert find_resources(config, tmp_path / "one").model_path == model_folder("tiny")
    config.model.local_path = str(tmp_path / "copy")
    shutil.copytree(model_folder("tiny"), tmp_path / "copy")
    settings = to_verl_config(config, find_resources(config, tmp_path / "two"))
    assert settings[f"{MODEL}.path"] == str(tmp_path / "copy")
    assert settings["trainer.default_local_dir"] == str(tmp_path / "two" / "verl")
    assert settings["trainer.experiment_name"] == "two"
