"""VERL's config from our settings: what VERL calls each of them, or that it has no such thing.

`to_verl_config` maps them without importing VERL; `compose` makes VERL's whole config of the
result. A setting that VERL does not have is an error, unless it has its default.
"""

import contextlib
import json
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
REF = "actor_rollout_ref.ref"

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

COPIED: dict[str, str] = {
    "model.tensor_parallel_size": f"{ROLLOUT}.tensor_model_parallel_size",
    "inference.temperature": f"{ROLLOUT}.temperature",
    "inference.top_p": f"{ROLLOUT}.top_p",
    "training.gamma": "algorithm.gamma",
    "training.lam": "algorithm.lam",
    "training.clip_ratio": f"{ACTOR}.clip_ratio",
    "training.batch_size": "data.train_batch_size",
    "training.use_kl_in_reward": "algorithm.use_kl_in_reward",
    "training.kl_coef": "algorithm.kl_ctrl.kl_coef",
    "training.kl_horizon": "algorithm.kl_ctrl.horizon",
    "training.kl_penalty": "algorithm.kl_penalty",
    "training.update_epochs": f"{ACTOR}.ppo_epochs",
    "training.entropy_coef": f"{ACTOR}.entropy_coeff",
    "training.kl_loss_coef": f"{ACTOR}.kl_loss_coef",
    "training.seed": "data.seed",
    "ray.num_actors": f"{ROLLOUT}.agent.num_workers",
}
"""Settings whose values VERL takes as they are, and where they go."""

UNSUPPORTED = frozenset((
    "expert", "policies", "model.load_in_4bit", "model.reference", "checkpoint.best_metric",
    "ray.max_failures",
    "ray.context_parallel_size", "ray.min_actors",
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

_PRECISIONS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_SINKS = ("tensorboard", "wandb", "mlflow", "trackio")
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
        if (value := getattr(config, name)) is not None:
            given = f"a mix of {len(value)}" if name == "environments" else repr(value)
            raise ConfigError(
                f"{name} is {given}, and VERL has no such setting: it trains in one "
                "environment. Train with engine='local' or 'ray'."
            )


def _problems(config: ConfigStore, resources: Resources) -> Iterator[str]:
    """Yield what these settings ask for and VERL cannot do."""
    defaults = dict(ConfigStore().settings())
    for name, value in config.settings():
        if name in UNSUPPORTED and value != defaults[name]:
            yield (
                f"{name} is {value!r}, and VERL has no such setting. Leave it at "
                f"{defaults[name]!r}, or train with engine='local'."
            )
    training, logging, ray = config.training, config.logging, config.ray
    for name, values, known in (
        ("training.adv_estimator", [training.adv_estimator], sorted(ESTIMATORS)),
        ("training.policy_loss", [training.policy_loss], sorted(POLICY_LOSSES)),
        ("training.lr_schedule", [training.lr_schedule], ["constant", "cosine"]),
        ("inference.backend", [config.inference.backend], ["local", "vllm", "sglang"]),
        ("logging.sinks", logging.sinks, _SINKS),
        ("logging.wandb", logging.wandb, ["project", "name"]),
    ):
        if unknown := ", ".join(repr(value) for value in values if value not in known):
            yield f"{name} got {unknown}, which VERL does not have. VERL has: {', '.join(known)}."
    if config.inference.temperature == 0:
        yield "inference.temperature got 0: a greedy policy explores nothing."
    if config.model.device == "cpu":
        yield "model.device got 'cpu', and VERL trains on GPUs. Train with engine='local'."
    if ray.gpus_per_worker not in (0, 1):
        yield f"ray.gpus_per_worker got {ray.gpus_per_worker}. VERL's workers have one each."
    if 0 < resources.num_gpus < ray.num_learners:
        yield (
            f"ray.num_learners got {ray.num_learners}, and torch sees {resources.num_gpus} GPUs: "
            "VERL's workers have one each."
        )
    size, group = training.mini_batch_size, group_size(config)
    num_episodes = training.batch_size * group
    if size is not None and (size % group or num_episodes % size):
        yield (
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
    refuse_mix(config)
    for problem in _problems(config, resources):
        raise ConfigError(problem)
    training = config.training
    per_epoch = per_epoch or training.epoch_steps(None)
    num_steps = num_steps or training.max_steps or training.num_epochs * per_epoch
    values = dict(config.settings())
    settings = {target: values[name] for name, target in COPIED.items()}
    settings |= _rollout(config, resources, limits or episode_limits(config))
    longest = settings["data.max_prompt_length"] + settings["data.max_response_length"]
    settings |= _model(config, resources)
    settings |= _update(config, longest)
    settings |= _run(config, resources, num_steps, per_epoch)
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
        f"{ROLLOUT}.mode": "async",
        f"{ROLLOUT}.n": group_size(config),
        f"{ROLLOUT}.calculate_log_probs": True,
        f"{ROLLOUT}.multi_turn.enable": inference.multi_turn,
        f"{ROLLOUT}.multi_turn.max_assistant_turns": turns,
        f"{ROLLOUT}.agent.default_agent_loop": AGENT_LOOP,
        f"{ROLLOUT}.agent.agent_loop_manager_class": f"{AGENT_LOOP_MODULE}.EpisodeLoopManager",
        "data.max_prompt_length": prompt,
        "data.max_response_length": min(response, resources.context_length - prompt),
        "reward.num_workers": 0,  # the agent loop scores
    }


def _model(config: ConfigStore, resources: Resources) -> dict[str, Any]:
    model, training = config.model, config.training
    dtype = "bfloat16" if model.dtype == "auto" else model.dtype
    settings: dict[str, Any] = {
        f"{ROLLOUT}.dtype": dtype,
        "data.trust_remote_code": model.trust_remote_code,
    }
    for section in (f"{ACTOR}.fsdp_config", f"{REF}.fsdp_config", "critic.fsdp"):
        settings |= {
            f"{section}.mixed_precision.param_dtype": _PRECISIONS[dtype],
            f"{section}.mixed_precision.reduce_dtype": "fp32",
            f"{section}.mixed_precision.buffer_dtype": "fp32",
        }
    for section in (MODEL, "critic.model"):
        settings |= {
            f"{section}.path": resources.model_path,
            f"{section}.trust_remote_code": model.trust_remote_code,
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


def _update(config: ConfigStore, longest: int) -> dict[str, Any]:
    """Return the settings of the algorithm and the optimizer; `longest` is a whole episode."""
    training = config.training
    low, high = training.clip_ratio_low, training.clip_ratio_high
    # VERL counts a mini-batch in starts, each with its whole group.
    mini_batch = training.mini_batch_size or training.batch_size * group_size(config)
    # A micro-batch holds at least one whole episode.
    most_tokens = max(training.micro_batch_tokens or _MICRO_BATCH_TOKENS, longest)
    settings: dict[str, Any] = {
        "algorithm.adv_estimator": ESTIMATORS[training.adv_estimator],
        "algorithm.norm_adv_by_std_in_grpo": training.adv_estimator != "dr_grpo",
        f"{ACTOR}.use_kl_loss": training.kl_loss_coef > 0,
        f"{ACTOR}.policy_loss.loss_mode": POLICY_LOSSES[training.policy_loss],
        f"{ACTOR}.clip_ratio_low": training.clip_ratio if low is None else low,
        f"{ACTOR}.clip_ratio_high": training.clip_ratio if high is None else high,
        f"{ACTOR}.ppo_mini_batch_size": mini_batch // group_size(config),
        f"{ACTOR}.use_dynamic_bsz": True,
        f"{ACTOR}.ppo_max_token_len_per_gpu": most_tokens,
        "critic.ppo_max_token_len_per_gpu": most_tokens,
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
            f"{section}.optim.lr": training.learning_rate,
            f"{section}.optim.weight_decay": training.weight_decay,
            f"{section}.optim.lr_warmup_steps": training.warmup_steps or -1,
            f"{section}.optim.lr_scheduler_type": training.lr_schedule,
            # VERL always clips: null becomes a bound that no gradient reaches.
            f"{section}.optim.clip_grad": training.max_grad_norm or 1e9,
            f"{section}.data_loader_seed": training.seed,
        }
    return settings


def _run(
    config: ConfigStore, resources: Resources, num_steps: int, per_epoch: int
) -> dict[str, Any]:
    training, checkpoint, wandb = config.training, config.checkpoint, config.logging.wandb
    num_workers = config.ray.num_learners
    if num_workers == 1:  # the default: all GPUs
        num_workers = max(resources.num_gpus, 1)
    settings = {
        "data.shuffle": False,  # the dataset is in its order already
        "data.dataloader_num_workers": 0,
        "data.return_raw_chat": True,
        "trainer.use_v1": False,
        "trainer.n_gpus_per_node": num_workers,
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
        settings["ray_kwargs.ray_init.address"] = config.ray.address
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
    if config.trainer.use_v1 and on_error != "retry":
        raise ConfigError(
            f"training.on_error got {on_error!r}. VERL's V1 trainer continues without the "
            "episodes that failed; take 'retry', or trainer.use_v1=false."
        )
    if config.trainer.use_v1 and arguments:
        raise ConfigError(
            f"VERL's V1 trainer makes its own components: {', '.join(arguments)} cannot be "
            "passed to it. Leave them out, or train with trainer.use_v1=false."
        )
    if not config.trainer.use_v1 and num_episodes % rollout.agent.num_workers:
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
