"""Our settings in VERL's words. Nothing of VERL is imported: the mapping is plain data.

A setting that VERL has no place for is an error, unless it has its default.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from turnwise.config import ConfigStore
from turnwise.episode import EpisodeLimits
from turnwise.errors import ConfigError
from turnwise.learner.lora import default_alpha, refuse_lora_settings
from turnwise.scale.verl.machine import Machine
from turnwise.scale.verl.names import AGENT_LOOP, CPU_ROLLOUT, LOOP_MANAGER
from turnwise.scale.verl.targets import (
    ACTOR,
    ESTIMATORS,
    MODEL,
    POLICY_LOSSES,
    REF,
    ROLLOUT,
    TARGETS,
)
from turnwise.trainer.rollout import group_size, limits_of

_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_SINKS = ("tensorboard", "wandb", "mlflow", "trackio")

_MOST_PROMPT = 2048
_MICRO_BATCH_TOKENS = 16384  # VERL's own
_OBSERVATION = 256
"""Tokens that an observation is expected to have at most, where the context allows it."""


def to_verl_config(
    config: ConfigStore,
    machine: Machine,
    num_steps: int | None = None,
    per_epoch: int | None = None,
    limits: EpisodeLimits | None = None,
) -> dict[str, Any]:
    """Every target in VERL's config by its dotted name, and its value.

    `num_steps` and `per_epoch` are the steps of the run and of an epoch, where a dataset says;
    `limits` are those that Python gave, if they are not the settings' own.
    """
    _refuse_what_verl_lacks(config)
    training = config.training
    per_epoch = per_epoch or training.steps_per_epoch
    num_steps = num_steps or training.num_epochs * per_epoch
    rollout = _rollout(config, machine, limits or limits_of(config))
    longest = rollout["data.max_prompt_length"] + rollout["data.max_response_length"]
    return {
        **_model(config, machine),
        **rollout,
        **_algorithm(config),
        **_update(config, machine, longest),
        **_run(config, machine, num_steps, per_epoch),
        **(_cpu() if machine.on_cpu else {}),
    }


def refuse_mix(config: ConfigStore) -> None:
    """VERL's workers play in one environment."""
    if config.environments is not None:
        raise ConfigError(
            f"environments is a mix of {len(config.environments)}, and VERL has no such thing: it "
            "is given one environment. Train the mix with engine='local' or 'ray'."
        )


def _refuse_what_verl_lacks(config: ConfigStore) -> None:
    refuse_mix(config)
    for name, value, default in _fields(config):
        if name not in TARGETS and value != default:
            raise ConfigError(
                f"{name} is {value!r}, and VERL has no such thing. Leave it at {default!r}, or "
                "train with engine='local'."
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


def _fields(config: ConfigStore) -> Iterator[tuple[str, Any, Any]]:
    """(dotted name, value, default) of every setting."""
    defaults = dict(ConfigStore().settings())
    yield from ((name, value, defaults[name]) for name, value in config.settings())


def _model(config: ConfigStore, machine: Machine) -> dict[str, Any]:
    model, training = config.model, config.training
    dtype = model.dtype
    if dtype == "auto":
        dtype = "float32" if machine.on_cpu else "bfloat16"
    if machine.on_cpu and dtype != "float32":
        raise ConfigError(f"model.dtype got {dtype!r}. VERL on a CPU computes in float32.")
    if machine.on_cpu and training.lora_rank:
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
            f"{place}.path": machine.model_path,
            f"{place}.trust_remote_code": model.trust_remote_code,
            f"{place}.enable_gradient_checkpointing": training.gradient_checkpointing,
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


def _rollout(config: ConfigStore, machine: Machine, limits: EpisodeLimits) -> dict[str, Any]:
    inference = config.inference
    turns = limits.max_turns or inference.max_turns
    prompt = min(_MOST_PROMPT, machine.context_length // 2)
    a_turn = limits.max_tokens_per_turn or inference.max_tokens
    wanted = turns * a_turn + (turns - 1) * _OBSERVATION
    if limits.max_tokens is not None:
        wanted = min(wanted, limits.max_tokens)
    response = min(wanted, machine.context_length - prompt)
    return {
        f"{ROLLOUT}.name": _backend(config, machine),
        f"{ROLLOUT}.mode": "async",
        f"{ROLLOUT}.temperature": inference.temperature,
        f"{ROLLOUT}.top_p": inference.top_p,
        f"{ROLLOUT}.n": group_size(config),
        f"{ROLLOUT}.tensor_model_parallel_size": config.model.tensor_parallel_size,
        f"{ROLLOUT}.calculate_log_probs": True,
        f"{ROLLOUT}.multi_turn.enable": inference.multi_turn,
        f"{ROLLOUT}.multi_turn.max_assistant_turns": turns,
        f"{ROLLOUT}.agent.default_agent_loop": AGENT_LOOP,
        f"{ROLLOUT}.agent.agent_loop_manager_class": LOOP_MANAGER,
        f"{ROLLOUT}.agent.num_workers": config.ray.num_actors,
        "data.max_prompt_length": prompt,
        "data.max_response_length": response,
        "reward.num_workers": 0,  # they would have nothing to do: the agent loop scores
    }


def _backend(config: ConfigStore, machine: Machine) -> str:
    backend = config.inference.backend
    if backend in ("transformers", "scripted"):
        raise ConfigError(
            f"inference.backend got {backend!r}. VERL samples with vllm or sglang on a GPU, and "
            "with local on a CPU."
        )
    if machine.on_cpu:
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
        "algorithm.gamma": training.gamma,
        "algorithm.lam": training.lam,
        "algorithm.use_kl_in_reward": training.use_kl_in_reward,
        "algorithm.kl_ctrl.kl_coef": training.kl_coef,
        "algorithm.kl_ctrl.horizon": training.kl_horizon,
        "algorithm.kl_penalty": training.kl_penalty,
        "algorithm.norm_adv_by_std_in_grpo": training.adv_estimator != "dr_grpo",
        f"{ACTOR}.use_kl_loss": training.kl_loss_coef > 0,
        f"{ACTOR}.kl_loss_coef": training.kl_loss_coef,
        f"{ACTOR}.policy_loss.loss_mode": POLICY_LOSSES[training.policy_loss],
        f"{ACTOR}.entropy_coeff": training.entropy_coef,
    }
    if training.kl_target is not None:
        found |= {
            "algorithm.kl_ctrl.type": "adaptive",
            "algorithm.kl_ctrl.target_kl": training.kl_target,
        }
    low, high = training.clip_ratio_low, training.clip_ratio_high
    both = training.clip_ratio
    found |= {
        f"{ACTOR}.clip_ratio": both,
        f"{ACTOR}.clip_ratio_low": both if low is None else low,
        f"{ACTOR}.clip_ratio_high": both if high is None else high,
    }
    if training.loss_agg_mode is not None:
        found[f"{ACTOR}.loss_agg_mode"] = training.loss_agg_mode
    if training.adv_estimator == "optimal_token_baseline":
        found[f"{ACTOR}.calculate_sum_pi_squared"] = True
    return found


def _update(config: ConfigStore, machine: Machine, longest: int) -> dict[str, Any]:
    training = config.training
    # A micro-batch holds at least one whole episode.
    most_tokens = max(training.micro_batch_tokens or _MICRO_BATCH_TOKENS, longest)
    found: dict[str, Any] = {
        f"{ACTOR}.ppo_mini_batch_size": _mini_batch(config),
        f"{ACTOR}.ppo_epochs": training.update_epochs,
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
            # VERL always clips: a bound that no gradient reaches.
            f"{place}.optim.clip_grad": training.max_grad_norm or 1e9,
            f"{place}.data_loader_seed": training.seed,
        }
    return found


def _mini_batch(config: ConfigStore) -> int:
    """VERL counts starts, each with its whole group; we count episodes."""
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


def _run(config: ConfigStore, machine: Machine, num_steps: int, per_epoch: int) -> dict[str, Any]:
    training, checkpoint = config.training, config.checkpoint
    unknown = sorted(set(config.logging.sinks) - set(_SINKS))
    if unknown:
        raise ConfigError(f"logging.sinks got {unknown}. VERL has: {', '.join(_SINKS)}.")
    found = {
        "data.train_batch_size": training.batch_size,
        "data.shuffle": False,  # the dataset has the order already
        "data.seed": training.seed,
        "data.dataloader_num_workers": 0,
        "data.return_raw_chat": True,
        "trainer.use_v1": False,
        "trainer.device": "cpu" if machine.on_cpu else "cuda",
        "trainer.nnodes": machine.num_nodes,
        "trainer.n_gpus_per_node": _num_workers(config, machine),
        "trainer.total_epochs": 1,  # each step has starts of its own: one pass over all of them
        "trainer.total_training_steps": num_steps,
        "trainer.project_name": "turnwise",
        "trainer.experiment_name": machine.run_folder.name,
        "trainer.logger": ["console", "file", *config.logging.sinks],
        "trainer.default_local_dir": str(machine.run_folder / "verl"),
        "trainer.save_freq": checkpoint.save_interval * per_epoch,
        "trainer.max_actor_ckpt_to_keep": checkpoint.keep_last_n,
        "trainer.max_critic_ckpt_to_keep": checkpoint.keep_last_n,
        "trainer.val_before_train": False,
        "trainer.test_freq": per_epoch if training.eval_episodes else -1,
        f"{ROLLOUT}.seed": training.seed,
        f"{ACTOR}.fsdp_config.seed": training.seed,
        "critic.fsdp.seed": training.seed,
    }
    if config.ray.address is not None:
        found["ray_kwargs.ray_init.address"] = config.ray.address
    return found


def _num_workers(config: ConfigStore, machine: Machine) -> int:
    """Learner workers on a machine; VERL gives each a GPU, and Ray counts a CPU's as such."""
    if config.ray.gpus_per_worker not in (0, 1):
        raise ConfigError(
            f"ray.gpus_per_worker got {config.ray.gpus_per_worker}. VERL's workers have one each."
        )
    wanted = config.ray.num_learners
    if machine.on_cpu:
        return wanted
    if wanted > machine.num_gpus:
        raise ConfigError(
            f"ray.num_learners got {wanted}, and torch sees {machine.num_gpus} GPUs: VERL's "
            "workers have one each."
        )
    return machine.num_gpus if wanted == 1 else wanted


def _cpu() -> dict[str, Any]:
    """What VERL must not do where there is no GPU."""
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
