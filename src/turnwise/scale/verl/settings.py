"""`to_verl_config`: our settings as settings of VERL's, without importing VERL.

A setting that VERL does not have is an error, unless it has its default.
"""

from __future__ import annotations

from typing import Any

from turnwise.config import ConfigStore
from turnwise.env import BaseEnvironment
from turnwise.episode import EpisodeLimits, episode_limits
from turnwise.errors import ConfigError
from turnwise.learner.lora import default_alpha, refuse_lora_settings
from turnwise.scale.verl.resources import Resources
from turnwise.scale.verl.targets import (
    ACTOR,
    AGENT_LOOP,
    COPIED,
    CPU_ROLLOUT,
    ESTIMATORS,
    LOOP_MANAGER,
    MODEL,
    POLICY_LOSSES,
    REF,
    ROLLOUT,
    UNSUPPORTED,
)
from turnwise.trainer.rollout import group_size

_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_SINKS = ("tensorboard", "wandb", "mlflow", "trackio")

_MAX_PROMPT = 2048
_MICRO_BATCH_TOKENS = 16384  # VERL's default
_MAX_OBSERVATION = 256
"""Tokens reserved for an observation, where the context allows it."""


def to_verl_config(
    config: ConfigStore,
    resources: Resources,
    num_steps: int | None = None,
    per_epoch: int | None = None,
    limits: EpisodeLimits | None = None,
) -> dict[str, Any]:
    """Return VERL's settings by their dotted names.

    `num_steps` and `per_epoch` are the steps of the run and of an epoch; by default those of the
    settings. `limits` are those given in Python; by default those of the settings.
    """
    _refuse_what_verl_lacks(config)
    training = config.training
    per_epoch = per_epoch or training.epoch_steps(None)
    num_steps = num_steps or training.max_steps or training.num_epochs * per_epoch
    rollout = _rollout(config, resources, limits or episode_limits(config))
    longest = rollout["data.max_prompt_length"] + rollout["data.max_response_length"]
    values = dict(config.settings())
    return {
        **{target: values[name] for name, target in COPIED.items()},
        **_model(config, resources),
        **rollout,
        **_algorithm(config),
        **_update(config, resources, longest),
        **_run(config, resources, num_steps, per_epoch),
        **(_cpu() if resources.on_cpu else {}),
    }


def refuse_mix(config: ConfigStore) -> None:
    """Refuse a mix of environments and an agent: VERL's workers play in one environment."""
    if config.agent is not None:
        raise ConfigError(
            f"agent is {config.agent!r}, and episodes inside VERL are played in an environment. "
            "Train the agent with engine='local' or 'ray'."
        )
    if config.environments is not None:
        raise ConfigError(
            f"environments is a mix of {len(config.environments)}, and VERL has no such setting: "
            "it trains in one environment. Train the mix with engine='local' or 'ray'."
        )


def _refuse_what_verl_lacks(config: ConfigStore) -> None:
    refuse_mix(config)
    defaults = dict(ConfigStore().settings())
    for name, value in config.settings():
        if name in UNSUPPORTED and value != defaults[name]:
            raise ConfigError(
                f"{name} is {value!r}, and VERL has no such setting. Leave it at "
                f"{defaults[name]!r}, or train with engine='local'."
            )
    training = config.training
    for name, value, known in (
        ("adv_estimator", training.adv_estimator, ESTIMATORS),
        ("policy_loss", training.policy_loss, POLICY_LOSSES),
    ):
        if value not in known:
            raise ConfigError(
                f"training.{name} got {value!r}, which VERL does not have. "
                f"It has: {', '.join(sorted(known))}."
            )
    if training.lr_schedule == "linear":
        raise ConfigError("training.lr_schedule got 'linear'. VERL has: constant, cosine.")
    if config.inference.temperature == 0:
        raise ConfigError("inference.temperature got 0: a greedy policy explores nothing.")


def _model(config: ConfigStore, resources: Resources) -> dict[str, Any]:
    model, training = config.model, config.training
    dtype = model.dtype
    if dtype == "auto":
        dtype = "float32" if resources.on_cpu else "bfloat16"
    if resources.on_cpu and dtype != "float32":
        raise ConfigError(f"model.dtype got {dtype!r}. VERL on a CPU computes in float32.")
    if resources.on_cpu and training.lora_rank:
        raise ConfigError("training.lora_rank needs VERL's vLLM or SGLang rollout, on a GPU.")
    kept = {"param_dtype": _DTYPES[dtype], "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    found: dict[str, Any] = {
        f"{ROLLOUT}.dtype": dtype,
        f"{ACTOR}.fsdp_config.mixed_precision": kept,
        f"{REF}.fsdp_config.mixed_precision": kept,
        "critic.fsdp.mixed_precision": kept,
        "data.trust_remote_code": model.trust_remote_code,
    }
    for place in (MODEL, "critic.model"):
        found |= {
            f"{place}.path": resources.model_path,
            f"{place}.trust_remote_code": model.trust_remote_code,
            f"{place}.enable_gradient_checkpointing": bool(training.gradient_checkpointing),
        }
    if not training.lora_rank:
        refuse_lora_settings(training)
    else:
        found |= {
            f"{MODEL}.lora_rank": training.lora_rank,
            f"{MODEL}.lora_alpha": training.lora_alpha or default_alpha(training.lora_rank),
            f"{MODEL}.target_modules": training.lora_target_modules,
        }
    return found


def _rollout(config: ConfigStore, resources: Resources, limits: EpisodeLimits) -> dict[str, Any]:
    inference = config.inference
    turns = limits.turn_limit(config.environment.max_steps or BaseEnvironment.max_steps)
    prompt = min(_MAX_PROMPT, resources.context_length // 2)
    a_turn = limits.max_tokens_per_turn or inference.max_tokens
    wanted = turns * a_turn + (turns - 1) * _MAX_OBSERVATION
    if limits.max_tokens is not None:
        wanted = min(wanted, limits.max_tokens)
    response = min(wanted, resources.context_length - prompt)
    return {
        f"{ROLLOUT}.name": _backend(config, resources),
        f"{ROLLOUT}.mode": "async",
        f"{ROLLOUT}.n": group_size(config),
        f"{ROLLOUT}.calculate_log_probs": True,
        f"{ROLLOUT}.multi_turn.enable": inference.multi_turn,
        f"{ROLLOUT}.multi_turn.max_assistant_turns": turns,
        f"{ROLLOUT}.agent.default_agent_loop": AGENT_LOOP,
        f"{ROLLOUT}.agent.agent_loop_manager_class": LOOP_MANAGER,
        "data.max_prompt_length": prompt,
        "data.max_response_length": response,
        "reward.num_workers": 0,  # the agent loop scores
    }


def _backend(config: ConfigStore, resources: Resources) -> str:
    backend = config.inference.backend
    if backend in ("transformers", "scripted"):
        raise ConfigError(
            f"inference.backend got {backend!r}. VERL samples with vllm or sglang on a GPU, and "
            "with local on a CPU."
        )
    if resources.on_cpu:
        if backend != "local":
            raise ConfigError(
                f"inference.backend got {backend!r}, and this machine has no GPU that torch sees. "
                "VERL samples with local on a CPU."
            )
        return CPU_ROLLOUT
    return "vllm" if backend == "local" else backend


def _algorithm(config: ConfigStore) -> dict[str, Any]:
    training = config.training
    found: dict[str, Any] = {
        "algorithm.adv_estimator": ESTIMATORS[training.adv_estimator],
        "algorithm.norm_adv_by_std_in_grpo": training.adv_estimator != "dr_grpo",
        f"{ACTOR}.use_kl_loss": training.kl_loss_coef > 0,
        f"{ACTOR}.policy_loss.loss_mode": POLICY_LOSSES[training.policy_loss],
    }
    if training.kl_target is not None:
        found |= {
            "algorithm.kl_ctrl.type": "adaptive",
            "algorithm.kl_ctrl.target_kl": training.kl_target,
        }
    low, high, both = training.clip_ratio_low, training.clip_ratio_high, training.clip_ratio
    found[f"{ACTOR}.clip_ratio_low"] = both if low is None else low
    found[f"{ACTOR}.clip_ratio_high"] = both if high is None else high
    if training.loss_agg_mode is not None:
        found[f"{ACTOR}.loss_agg_mode"] = training.loss_agg_mode
    if training.adv_estimator == "optimal_token_baseline":
        found[f"{ACTOR}.calculate_sum_pi_squared"] = True
    return found


def _update(config: ConfigStore, resources: Resources, longest: int) -> dict[str, Any]:
    training = config.training
    # A micro-batch holds at least one whole episode.
    most_tokens = max(training.micro_batch_tokens or _MICRO_BATCH_TOKENS, longest)
    found: dict[str, Any] = {
        f"{ACTOR}.ppo_mini_batch_size": _mini_batch(config),
        f"{ACTOR}.use_dynamic_bsz": True,
        f"{ACTOR}.ppo_max_token_len_per_gpu": most_tokens,
        "critic.ppo_max_token_len_per_gpu": most_tokens,
    }
    for place in (ACTOR, "critic"):
        found |= {
            f"{place}.optim.lr": training.learning_rate,
            f"{place}.optim.weight_decay": training.weight_decay,
            f"{place}.optim.lr_warmup_steps": training.warmup_steps or -1,
            f"{place}.optim.lr_scheduler_type": training.lr_schedule,
            # VERL always clips: null becomes a bound that no gradient reaches.
            f"{place}.optim.clip_grad": training.max_grad_norm or 1e9,
            f"{place}.data_loader_seed": training.seed,
        }
    return found


def _mini_batch(config: ConfigStore) -> int:
    """Return the mini-batch size as VERL counts it: in starts, each with its whole group."""
    training, group = config.training, group_size(config)
    size = training.mini_batch_size
    if size is None:
        return training.batch_size
    if size % group or training.batch_size * group % size:
        raise ConfigError(
            f"training.mini_batch_size got {size}. VERL takes whole groups of {group}, and so "
            f"many that they divide the {training.batch_size * group} episodes of a step."
        )
    return size // group


def _run(
    config: ConfigStore, resources: Resources, num_steps: int, per_epoch: int
) -> dict[str, Any]:
    training, checkpoint = config.training, config.checkpoint
    unknown = sorted(set(config.logging.sinks) - set(_SINKS))
    if unknown:
        raise ConfigError(f"logging.sinks got {unknown}. VERL has: {', '.join(_SINKS)}.")
    wandb = config.logging.wandb
    if extra := sorted(wandb.keys() - {"project", "name"}):
        raise ConfigError(f"logging.wandb got {extra}. VERL has: project, name.")
    found = {
        "data.shuffle": False,  # the dataset is in its order already
        "data.dataloader_num_workers": 0,
        "data.return_raw_chat": True,
        "trainer.use_v1": False,
        "trainer.device": "cpu" if resources.on_cpu else "cuda",
        "trainer.nnodes": resources.num_nodes,
        "trainer.n_gpus_per_node": _num_workers(config, resources),
        "trainer.total_epochs": 1,  # each step has its own starts: one pass over all
        "trainer.total_training_steps": num_steps,
        "trainer.project_name": wandb.get("project", "turnwise"),
        "trainer.experiment_name": wandb.get("name", resources.run_folder.name),
        "trainer.logger": ["console", "file", *config.logging.sinks],
        "trainer.default_local_dir": str(resources.run_folder / "verl"),
        "trainer.save_freq": checkpoint.save_steps or (checkpoint.save_interval or 1) * per_epoch,
        "trainer.max_actor_ckpt_to_keep": checkpoint.keep_last_n,
        "trainer.max_critic_ckpt_to_keep": checkpoint.keep_last_n,
        "trainer.val_before_train": False,
        "trainer.test_freq": (training.eval_steps or per_epoch) if training.eval_episodes else -1,
        f"{ROLLOUT}.seed": training.seed,
        f"{ACTOR}.fsdp_config.seed": training.seed,
        "critic.fsdp.seed": training.seed,
    }
    if config.ray.address is not None:
        found["ray_kwargs.ray_init.address"] = config.ray.address
    return found


def _num_workers(config: ConfigStore, resources: Resources) -> int:
    """Return the number of learner workers on a machine; VERL gives each a GPU."""
    if config.ray.gpus_per_worker not in (0, 1):
        raise ConfigError(
            f"ray.gpus_per_worker got {config.ray.gpus_per_worker}. VERL's workers have one each."
        )
    wanted = config.ray.num_learners
    if resources.on_cpu:
        return wanted
    if wanted > resources.num_gpus:
        raise ConfigError(
            f"ray.num_learners got {wanted}, and torch sees {resources.num_gpus} GPUs: VERL's "
            "workers have one each."
        )
    return resources.num_gpus if wanted == 1 else wanted


def _cpu() -> dict[str, Any]:
    """Return the settings that VERL needs on a machine without GPU."""
    found: dict[str, Any] = {
        f"{ROLLOUT}.free_cache_engine": False,
        f"{ROLLOUT}.load_format": "auto",
        f"{ROLLOUT}.enforce_eager": True,
        f"{ACTOR}.use_torch_compile": False,
        f"{ACTOR}.fsdp_config.use_torch_compile": False,
        f"{REF}.fsdp_config.use_torch_compile": False,
        "critic.fsdp.use_torch_compile": False,
        f"{ACTOR}.strategy": "fsdp2",
        "critic.strategy": "fsdp2",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
    }
    for place in (MODEL, "critic.model"):
        found[f"{place}.use_remove_padding"] = False
        found[f"{place}.override_config"] = {"attn_implementation": "sdpa"}
    return found
