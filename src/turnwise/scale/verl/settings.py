"""VERL's config from our settings: what VERL calls each of them, or that it has no such thing.

`to_verl_config` maps them without importing VERL; `compose` makes VERL's whole config of the
result. A setting that VERL does not have is an error, unless it has its default.
"""

import contextlib
import json
import sys
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnwise.config import ConfigStore
from turnwise.env import BaseEnvironment
from turnwise.episode import EpisodeLimits, episode_limits
from turnwise.errors import ConfigError, import_extra
from turnwise.learner.lora import default_alpha, refuse_lora_settings
from turnwise.models import model_folder
from turnwise.trainer.rollout import group_size
from turnwise.user_code import require_model_code, require_use

AGENT_LOOP = "turnwise_episode"
"""The agent loop that plays our episodes."""
AGENT_LOOP_MODULE = "turnwise.scale.verl.agent_loop"
"""The module that VERL imports in each of its processes: it registers the agent loop."""
OWN_SECTION = "turnwise"
"""The section of VERL's config that carries the user's components to the agent loops."""

ACTOR, ROLLOUT, MODEL = (f"actor_rollout_ref.{name}" for name in ("actor", "rollout", "model"))

# VERL's names of the same algorithms.
POLICY_LOSSES = {"ppo": "vanilla"} | {
    name: name
    for name in (
        "gspo", "cispo", "sapo", "gpg", "geo_mean", "clip_cov", "kl_cov", "dppo_tv", "dppo_kl"
    )
}  # fmt: skip
ESTIMATORS = {
    name: name
    for name in (
        "gae", "grpo", "grpo_passk", "rloo", "reinforce_plus_plus",
        "reinforce_plus_plus_baseline", "remax", "opo", "gpg", "optimal_token_baseline",
    )
} | {"dr_grpo": "grpo"}  # fmt: skip

FSDP_SECTIONS = (f"{ACTOR}.fsdp_config", "actor_rollout_ref.ref.fsdp_config", "critic.fsdp")

COPIED: dict[str, tuple[str, ...]] = {
    "model.tensor_parallel_size": (f"{ROLLOUT}.tensor_model_parallel_size",),
    "model.trust_remote_code": tuple(
        f"{section}.trust_remote_code" for section in ("data", MODEL, "critic.model")
    ),
    "inference.temperature": (f"{ROLLOUT}.temperature",),
    "inference.top_p": (f"{ROLLOUT}.top_p",),
    "inference.multi_turn": (f"{ROLLOUT}.multi_turn.enable",),
    "training.gamma": ("algorithm.gamma",),
    "training.lam": ("algorithm.lam",),
    "training.clip_ratio": (f"{ACTOR}.clip_ratio",),
    "training.batch_size": ("data.train_batch_size",),
    "training.use_kl_in_reward": ("algorithm.use_kl_in_reward",),
    "training.kl_coef": ("algorithm.kl_ctrl.kl_coef",),
    "training.kl_horizon": ("algorithm.kl_ctrl.horizon",),
    "training.kl_penalty": ("algorithm.kl_penalty",),
    "training.update_epochs": (f"{ACTOR}.ppo_epochs",),
    "training.entropy_coef": (f"{ACTOR}.entropy_coeff",),
    "training.kl_loss_coef": (f"{ACTOR}.kl_loss_coef",),
    "training.learning_rate": (f"{ACTOR}.optim.lr", "critic.optim.lr"),
    "training.weight_decay": (f"{ACTOR}.optim.weight_decay", "critic.optim.weight_decay"),
    "training.lr_schedule": (f"{ACTOR}.optim.lr_scheduler_type", "critic.optim.lr_scheduler_type"),
    "training.seed": (
        "data.seed",
        f"{ROLLOUT}.seed",
        f"{ACTOR}.fsdp_config.seed",
        "critic.fsdp.seed",
        f"{ACTOR}.data_loader_seed",
        "critic.data_loader_seed",
    ),
    "checkpoint.keep_last_n": ("trainer.max_actor_ckpt_to_keep", "trainer.max_critic_ckpt_to_keep"),
    "ray.num_actors": (f"{ROLLOUT}.agent.num_workers",),
}
"""Settings whose values VERL takes as they are, and where they go."""

FIXED: dict[str, Any] = {
    f"{ROLLOUT}.mode": "async",
    f"{ROLLOUT}.calculate_log_probs": True,
    f"{ROLLOUT}.agent.default_agent_loop": AGENT_LOOP,
    f"{ROLLOUT}.agent.agent_loop_manager_class": f"{AGENT_LOOP_MODULE}.EpisodeLoopManager",
    f"{ACTOR}.use_dynamic_bsz": True,
    "reward.num_workers": 0,  # the agent loop scores
    "data.shuffle": False,  # the dataset is in its order already
    "data.dataloader_num_workers": 0,
    "data.return_raw_chat": True,
    "trainer.use_v1": False,
    "trainer.total_epochs": 1,  # each step has its own starts: one pass over all
    "trainer.val_before_train": False,
    **{f"{section}.mixed_precision.reduce_dtype": "fp32" for section in FSDP_SECTIONS},
    **{f"{section}.mixed_precision.buffer_dtype": "fp32" for section in FSDP_SECTIONS},
}
"""What our episodes need, whatever the settings are."""

UNSUPPORTED = frozenset((
    "expert", "policies", "model.load_in_4bit", "model.reference", "checkpoint.best_metric",
    "ray.max_failures", "ray.context_parallel_size", "ray.min_actors",
    "inference.enable_thinking", "inference.options", "inference.stale_kv",
    "inference.stall_timeout", "inference.start_timeout", "inference.summary_prompt",
    "inference.thoughts", "inference.url", "limits.max_context_tokens",
    "limits.max_thinking_tokens", "training.adam_betas", "training.adam_epsilon",
    "training.adv_options", "training.importance_bounds", "training.importance_level",
    "training.kl_loss_type", "training.lora_dropout", "training.max_log_prob_gap",
    "training.max_staleness", "training.offload_optimizer", "training.optimizer",
    "training.optimizer_options", "training.policy_loss_options",
    "training.resample", "training.target_kl", "training.use_rslora", "training.value_clip",
    "training.value_coef", "training.warm_start", "training.warm_start_learning_rate",
    "training.warm_start_steps",
))  # fmt: skip
"""Settings that VERL does not have: they must have their defaults."""

KNOWN_VALUES: dict[str, Collection[Any]] = {
    "training.adv_estimator": ESTIMATORS,
    "training.policy_loss": POLICY_LOSSES,
    "training.lr_schedule": ("constant", "cosine"),
    "inference.backend": ("local", "vllm", "sglang"),
    "logging.sinks": ("tensorboard", "wandb", "mlflow", "trackio"),
    "logging.wandb": ("project", "name"),
    "model.device": ("auto", "cuda"),
    "ray.gpus_per_worker": (0, 1),
}
"""Settings of which VERL has these values; of a list or dict, these entries."""

_PRECISIONS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_DEFAULT_CONTEXT = 4096
_MAX_PROMPT = 2048
_MICRO_BATCH_TOKENS = 16384  # VERL's default
_MAX_OBSERVATION = 256
"""Tokens reserved for an observation, where the context allows it."""


@dataclass(frozen=True)
class Resources:
    """What VERL runs with, and the settings alone do not tell."""

    model_path: str
    """A folder or a Hugging Face id."""
    context_length: int
    num_gpus: int
    """On this machine."""
    run_folder: Path


def find_resources(config: ConfigStore, run_folder: Path) -> Resources:
    """Return the resources of this machine, for the model that the settings name."""
    import torch
    from transformers import AutoConfig

    model = config.model
    if config.ray.address is not None:
        require_use(f"the Ray cluster {config.ray.address}")
    if model.trust_remote_code:
        require_model_code(model.local_path or model.model_name)
    path = model_folder(model.local_path or model.model_name)
    model_config = AutoConfig.from_pretrained(path, trust_remote_code=model.trust_remote_code)
    length = getattr(model_config.get_text_config(), "max_position_embeddings", _DEFAULT_CONTEXT)
    return Resources(path, int(length), torch.cuda.device_count(), run_folder.absolute())


def refuse_mix(config: ConfigStore) -> None:
    """Refuse a mix of environments and an agent: VERL's workers play in one environment."""
    for name in ("agent", "environments"):
        if getattr(config, name) is not None:
            raise ConfigError(
                f"{name} is given, and VERL has no such setting: train with engine='local' or ray"
            )


def _refuse_unsupported(config: ConfigStore) -> None:
    refuse_mix(config)
    values, defaults = dict(config.settings()), dict(ConfigStore().settings())
    for name in UNSUPPORTED:
        if values[name] != defaults[name]:
            raise ConfigError(
                f"{name} is {values[name]!r}, and VERL has no such setting. Leave it at "
                f"{defaults[name]!r}, or train with engine='local'."
            )
    for name, known in KNOWN_VALUES.items():
        given = values[name]
        for value in given if isinstance(given, list | dict) else [given]:
            if value not in known:
                has = ", ".join(map(str, known))
                raise ConfigError(f"{name} got {value!r}, which is not VERL's. VERL has: {has}.")
    size, group = config.training.mini_batch_size, group_size(config)
    num_episodes = config.training.batch_size * group
    if size is not None and (size % group or num_episodes % size):
        raise ConfigError(
            f"training.mini_batch_size got {size}. VERL takes whole groups of {group}, and so "
            f"many that they divide the {num_episodes} episodes of a step."
        )


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
    _refuse_unsupported(config)
    training, wandb = config.training, config.logging.wandb
    per_epoch = per_epoch or training.epoch_steps(None)
    num_workers = config.ray.num_learners
    if num_workers == 1:  # the default: all GPUs
        num_workers = max(resources.num_gpus, 1)
    values = dict(config.settings())
    settings = FIXED | {
        "trainer.n_gpus_per_node": num_workers,
        "trainer.total_training_steps": (
            num_steps or training.max_steps or training.num_epochs * per_epoch
        ),
        "trainer.project_name": wandb.get("project", "turnwise"),
        "trainer.experiment_name": wandb.get("name", resources.run_folder.name),
        "trainer.logger": ["console", "file", *config.logging.sinks],
        "trainer.default_local_dir": str(resources.run_folder / "verl"),
        "trainer.save_freq": (
            config.checkpoint.save_steps or (config.checkpoint.save_interval or 1) * per_epoch
        ),
        "trainer.test_freq": (training.eval_steps or per_epoch) if training.eval_episodes else -1,
    }
    settings |= {target: values[name] for name, targets in COPIED.items() for target in targets}
    settings |= _model(config, resources)
    settings |= _rollout(config, resources, limits or episode_limits(config))
    longest_episode = settings["data.max_prompt_length"] + settings["data.max_response_length"]
    settings |= _update(config, longest_episode)
    if config.ray.address is not None:
        settings["ray_kwargs.ray_init.address"] = config.ray.address
    return settings


def _rollout(config: ConfigStore, resources: Resources, limits: EpisodeLimits) -> dict[str, Any]:
    inference = config.inference
    turns = limits.turn_limit(config.environment.max_steps or BaseEnvironment.max_steps)
    prompt = min(_MAX_PROMPT, resources.context_length // 2)
    tokens_per_turn = limits.max_tokens_per_turn or inference.max_tokens
    response = turns * tokens_per_turn + (turns - 1) * _MAX_OBSERVATION
    if limits.max_tokens is not None:
        response = min(response, limits.max_tokens)
    return {
        f"{ROLLOUT}.name": "vllm" if inference.backend == "local" else inference.backend,
        f"{ROLLOUT}.n": group_size(config),
        f"{ROLLOUT}.multi_turn.max_assistant_turns": turns,
        "data.max_prompt_length": prompt,
        "data.max_response_length": min(response, resources.context_length - prompt),
    }


def _model(config: ConfigStore, resources: Resources) -> dict[str, Any]:
    model, training = config.model, config.training
    dtype = "bfloat16" if model.dtype == "auto" else model.dtype
    settings: dict[str, Any] = {f"{ROLLOUT}.dtype": dtype}
    for section in FSDP_SECTIONS:
        settings[f"{section}.mixed_precision.param_dtype"] = _PRECISIONS[dtype]
    for section in (MODEL, "critic.model"):
        settings |= {
            f"{section}.path": resources.model_path,
            f"{section}.enable_gradient_checkpointing": bool(training.gradient_checkpointing),
        }
    if not training.lora_rank:
        refuse_lora_settings(training)
        return settings
    return settings | {
        f"{MODEL}.lora_rank": training.lora_rank,
        f"{MODEL}.lora_alpha": training.lora_alpha or default_alpha(training.lora_rank),
        f"{MODEL}.target_modules": training.lora_target_modules,
    }


def _update(config: ConfigStore, longest_episode: int) -> dict[str, Any]:
    training = config.training
    low, high = training.clip_ratio_low, training.clip_ratio_high
    # VERL counts a mini-batch in starts, each with its whole group.
    mini_batch = training.mini_batch_size or training.batch_size * group_size(config)
    # A micro-batch holds at least one whole episode.
    most_tokens = max(training.micro_batch_tokens or _MICRO_BATCH_TOKENS, longest_episode)
    settings: dict[str, Any] = {
        "algorithm.adv_estimator": ESTIMATORS[training.adv_estimator],
        "algorithm.norm_adv_by_std_in_grpo": training.adv_estimator != "dr_grpo",
        f"{ACTOR}.use_kl_loss": training.kl_loss_coef > 0,
        f"{ACTOR}.policy_loss.loss_mode": POLICY_LOSSES[training.policy_loss],
        f"{ACTOR}.clip_ratio_low": training.clip_ratio if low is None else low,
        f"{ACTOR}.clip_ratio_high": training.clip_ratio if high is None else high,
        f"{ACTOR}.ppo_mini_batch_size": mini_batch // group_size(config),
    }
    if training.kl_target is not None:
        settings["algorithm.kl_ctrl.type"] = "adaptive"
        settings["algorithm.kl_ctrl.target_kl"] = training.kl_target
    if training.loss_agg_mode is not None:
        settings[f"{ACTOR}.loss_agg_mode"] = training.loss_agg_mode
    if training.adv_estimator == "optimal_token_baseline":
        settings[f"{ACTOR}.calculate_sum_pi_squared"] = True
    for section in (ACTOR, "critic"):
        settings |= {
            f"{section}.ppo_max_token_len_per_gpu": most_tokens,
            f"{section}.optim.lr_warmup_steps": training.warmup_steps or -1,
            # VERL always clips: null becomes a bound that no gradient reaches.
            f"{section}.optim.clip_grad": training.max_grad_norm or 1e9,
        }
    return settings


def compose(settings: Mapping[str, Any], overrides: Iterable[str] = ()) -> Any:
    """Return VERL's config with our settings, then the user's own overrides in Hydra's syntax."""
    import_extra("verl", "verl")
    hydra = import_extra("hydra", "verl")
    from verl.experimental.reward_loop import migrate_legacy_reward_impl

    assignments = [
        f"++{name}={json.dumps(value, ensure_ascii=False)}" for name, value in settings.items()
    ]
    hydra.core.global_hydra.GlobalHydra.instance().clear()
    with hydra.initialize_config_module("verl.trainer.config", version_base=None):
        try:
            config = hydra.compose("ppo_trainer", [*assignments, *overrides])
        except hydra.errors.HydraException as error:
            raise ConfigError(
                f"VERL's config does not take one of {list(overrides)}: {error}"
            ) from error
    return migrate_legacy_reward_impl(config)


def check(config: Any, on_error: str = "retry", arguments: Sequence[str] = ()) -> None:
    """Refuse what VERL's trainers cannot do; `arguments` are those that a user passes on to them.

    VERL's own checks are among them: what they find is raised as a `ConfigError`.
    """
    errors = import_extra("hydra.errors", "verl")
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    rollout = config.actor_rollout_ref.rollout
    num_episodes = config.data.train_batch_size * rollout.n
    if config.trainer.use_v1:
        refused = [*arguments, *([] if on_error == "retry" else [f"training.on_error={on_error}"])]
        if refused:
            raise ConfigError(
                "VERL's V1 trainer makes its own components, and leaves failed episodes out. It "
                f"does not take {', '.join(refused)}: train with trainer.use_v1=false."
            )
    elif num_episodes % rollout.agent.num_workers:
        raise ConfigError(
            f"ray.num_actors got {rollout.agent.num_workers}, and VERL deals the {num_episodes} "
            "episodes of a step out evenly. Take a number that divides them."
        )
    try:
        # What VERL prints must not mix with a config that is printed to stdout.
        with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Disabled critic")  # it is what was asked for
            validate_config(
                config,
                use_reference_policy=need_reference_policy(config),
                use_critic=need_critic(config),
            )
    except (AssertionError, ValueError, errors.HydraException) as error:
        raise ConfigError(f"VERL cannot run with these settings: {error}") from error
