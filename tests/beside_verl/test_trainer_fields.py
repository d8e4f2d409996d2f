"""Every field of our config, one by one: it reaches VERL's config, or is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from beside_verl.mapping import MODEL, ROOMY, mapped
from turnwise import ConfigError, ConfigStore
from turnwise.config import EnvironmentItem, PolicyItem
from turnwise.models import model_folder
from turnwise.scale.verl.settings import UNSUPPORTED, find_resources, to_verl_config


def all_fields() -> list[str]:
    return [name for name, _ in ConfigStore().settings()]


# A value for every setting that is not its default. A setting that is new fails the tests here
# until it has one, and reaches VERL's config or is refused.
OTHER_VALUES: dict[str, Any] = {
    "model.model_name": "smollm2-135m",
    "model.local_path": "here",
    "model.dtype": "float32",
    "model.load_in_4bit": True,
    "model.device": "cuda",
    "model.tensor_parallel_size": 2,
    "model.trust_remote_code": True,
    "inference.backend": "sglang",
    "inference.url": "http://localhost:8000",
    "inference.options": {"max_model_len": 64},
    "inference.max_tokens": 9,
    "inference.temperature": 0.7,
    "inference.top_p": 0.9,
    "inference.multi_turn": False,
    "inference.max_turns": 3,
    "training.adv_estimator": "rloo",
    "training.learning_rate": 3e-5,
    "training.gamma": 0.9,
    "training.lam": 0.5,
    "training.clip_ratio": 0.3,
    "training.clip_ratio_low": 0.1,
    "training.clip_ratio_high": 0.28,
    "training.adv_options": {"norm_by_std": False},
    "training.policy_loss_options": {"clip_ratio_c": 4.0},
    "training.kl_horizon": 99,
    "training.kl_penalty": "k3",
    "training.kl_loss_type": "k2",
    "training.value_clip": 0.5,
    "training.importance_level": "sequence",
    "training.importance_bounds": 3.0,
    "training.adam_betas": [0.9, 0.99],
    "training.adam_epsilon": 1e-6,
    "training.num_epochs": 7,
    "training.steps_per_epoch": 3,
    "training.max_steps": 5,
    "training.batch_size": 8,
    "training.group_size": 4,
    "training.resample": 2,
    "training.on_error": "fail",
    "model.reference": "other-model",
    "training.use_kl_in_reward": True,
    "training.kl_coef": 0.2,
    "training.kl_target": 0.5,
    "training.update_epochs": 3,
    "training.mini_batch_size": 16,
    "training.micro_batch_tokens": 9999,
    "training.policy_loss": "gspo",
    "training.loss_agg_mode": "token-sum",
    "training.entropy_coef": 0.01,
    "training.kl_loss_coef": 0.1,
    "training.target_kl": 0.1,
    "training.max_log_prob_gap": 0.1,
    "training.max_staleness": 2,
    "inference.stale_kv": "recompute",
    "training.critic": "separate",
    "training.value_coef": 0.9,
    "training.max_grad_norm": 0.5,
    "training.weight_decay": 0.1,
    "training.warmup_steps": 5,
    "training.lr_schedule": "cosine",
    "training.lora_rank": 8,
    "training.lora_alpha": 12,
    "training.lora_target_modules": ["q_proj"],
    "training.lora_dropout": 0.1,
    "training.use_rslora": True,
    "training.gradient_checkpointing": True,
    "training.offload_optimizer": True,
    "training.optimizer": "muon",
    "training.optimizer_options": {"momentum": 0.9},
    "training.warm_start": "expert",
    "training.warm_start_steps": 7,
    "training.warm_start_learning_rate": 0.5,
    "training.eval_episodes": 5,
    "training.eval_fraction": 0.2,
    "training.eval_steps": 2,
    "training.seed": 7,
    "checkpoint.output_dir": "elsewhere",
    "checkpoint.run_name": "mine",
    "checkpoint.save_interval": 2,
    "checkpoint.save_steps": 3,
    "checkpoint.keep_last_n": 5,
    "checkpoint.best_metric": "reward",
    "environment.name": "grid-world",
    "environment.max_steps": 4,
    "environment.params": {"size": 3},
    "environments": [EnvironmentItem("grid-world")],
    "agent": "agents.py:mine",
    "expert": "agents.py:expert",
    "policies": {"black": PolicyItem()},
    "ray.use_ray": True,
    "ray.num_actors": 4,
    "ray.min_actors": 2,
    "ray.num_learners": 2,
    "ray.context_parallel_size": 2,
    "ray.gpus_per_worker": 1.0,
    "ray.address": "auto",
    "ray.max_failures": 9,
    "logging.level": "debug",
    "logging.sinks": ["wandb"],
    "logging.wandb": {"project": "mine", "name": "first"},
    "logging.episodes_gb": 0.5,
    "inference.enable_thinking": False,
    "inference.summary_prompt": "Sum up.",
    "inference.thoughts": "as_template",
    "inference.stall_timeout": 5.0,
    "inference.start_timeout": 5.0,
    "reward": "rewards.py:mine",
    "tools": ["calculator"],
    "parser": "react",
    "system_prompt": "Be brief.",
    **{
        f"{section}.{name}": value
        for section in ("dataset", "eval_dataset")
        for name, value in (
            ("path", "rows.jsonl"),
            ("split", "train"),
            ("prompt_key", "question"),
            ("columns", {"answer": "solution"}),
            ("max_rows", 5),
        )
    },
    **{
        f"limits.{name}": 7
        for name in (
            "max_turns", "max_tokens_per_turn", "max_tokens", "max_tool_calls", "max_seconds",
            "max_thinking_tokens", "max_context_tokens",
            "max_observation", "reset_timeout", "step_timeout", "tool_timeout",
            "generation_timeout", "reward_timeout", "close_timeout",
        )
    },
}  # fmt: skip
# What VERL does in any case: a critic is a model of its own, a worker has a GPU of its own, it runs
# on Ray and keeps no episodes.
ALWAYS = {"training.critic", "ray.gpus_per_worker", "ray.use_ray", "logging.episodes_gb"}
# What comes to VERL by way of the machine, not of the settings alone.
BY_MACHINE = {
    "model.model_name", "model.local_path", "model.device",
    "checkpoint.output_dir", "checkpoint.run_name",
}  # fmt: skip

# What the trainer or the episodes use themselves, inside VERL's processes.
BY_US = {
    "training.on_error", "training.eval_fraction", "logging.level",
    "reward", "tools", "parser", "system_prompt",
    "environment.name", "environment.params",
    *(name for name in all_fields() if name.startswith(("dataset.", "eval_"))),
    *(name for name in all_fields() if name.startswith("limits.") and name.endswith("_timeout")),
    "limits.max_tool_calls", "limits.max_seconds", "limits.max_observation",
}  # fmt: skip
REFUSED_FIRST = {"agent", "environments"}


def test_there_is_another_value_for_every_setting() -> None:
    assert set(OTHER_VALUES) == set(all_fields())


@pytest.mark.parametrize("name", all_fields())
def test_every_setting_reaches_verl_or_is_refused(name: str) -> None:
    other = {name.replace(".", "__"): OTHER_VALUES[name]}
    base = {"training__lora_rank": 4} if "lora_" in name and name not in UNSUPPORTED else {}
    if name == "training.eval_steps":
        base = {"training__eval_episodes": 5}
    if name in UNSUPPORTED | REFUSED_FIRST:
        with pytest.raises(ConfigError, match=rf"{name} is .*no such setting"):
            mapped(ROOMY, **other)
    else:
        is_same = mapped(ROOMY, **base | other) == mapped(ROOMY, **base)
        assert is_same == (name in ALWAYS | BY_MACHINE | BY_US)


def test_the_machine_brings_the_model_and_the_folder(tmp_path: Path) -> None:
    config = ConfigStore()
    assert find_resources(config, tmp_path / "one").model_path == model_folder("tiny")
    config.model.local_path = str(tmp_path / "copy")
    shutil.copytree(model_folder("tiny"), tmp_path / "copy")
    settings = to_verl_config(config, find_resources(config, tmp_path / "two"))
    assert settings[f"{MODEL}.path"] == str(tmp_path / "copy")
    assert settings["trainer.default_local_dir"] == str(tmp_path / "two" / "verl")
    assert settings["trainer.experiment_name"] == "two"
