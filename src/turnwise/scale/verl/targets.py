"""Names in VERL's config and registries: where each setting goes, what VERL calls an algorithm.

Importing this imports nothing of VERL.
"""

from __future__ import annotations

AGENT_LOOP = "turnwise_episode"
"""The agent loop that plays our episodes."""
CPU_ROLLOUT = "turnwise"
"""The rollout that samples on a CPU."""
PLUGIN = "turnwise.scale.verl.plugin"
"""The module that VERL imports in each of its processes."""
LOOP_MANAGER = "turnwise.scale.verl.loop_manager.EpisodeLoopManager"
"""The class that distributes the episodes, in VERL's RayPPOTrainer."""
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

# Where each setting goes; those that are missing must have their defaults.
TARGETS: dict[str, str] = COPIED | {
    "model.model_name": f"{MODEL}.path",
    "model.local_path": f"{MODEL}.path",
    "model.dtype": f"{ROLLOUT}.dtype",
    "model.device": "trainer.device",
    "model.trust_remote_code": f"{MODEL}.trust_remote_code",
    "inference.backend": f"{ROLLOUT}.name",
    "inference.max_tokens": "data.max_response_length",
    "inference.multi_turn": f"{ROLLOUT}.multi_turn.max_assistant_turns",
    "inference.max_turns": f"{ROLLOUT}.multi_turn.max_assistant_turns",
    "training.adv_estimator": "algorithm.adv_estimator",
    "training.learning_rate": f"{ACTOR}.optim.lr",
    "training.clip_ratio_low": f"{ACTOR}.clip_ratio_low",
    "training.clip_ratio_high": f"{ACTOR}.clip_ratio_high",
    "training.num_epochs": "trainer.total_training_steps",
    "training.steps_per_epoch": "trainer.total_training_steps",
    "training.group_size": f"{ROLLOUT}.n",
    "training.on_error": OWN_SECTION,
    "training.kl_target": "algorithm.kl_ctrl.target_kl",
    "training.mini_batch_size": f"{ACTOR}.ppo_mini_batch_size",
    "training.micro_batch_tokens": f"{ACTOR}.ppo_max_token_len_per_gpu",
    "training.policy_loss": f"{ACTOR}.policy_loss.loss_mode",
    "training.loss_agg_mode": f"{ACTOR}.loss_agg_mode",
    "training.critic": "critic.model.path",  # in VERL always a separate model
    "training.max_grad_norm": f"{ACTOR}.optim.clip_grad",
    "training.weight_decay": f"{ACTOR}.optim.weight_decay",
    "training.warmup_steps": f"{ACTOR}.optim.lr_warmup_steps",
    "training.lr_schedule": f"{ACTOR}.optim.lr_scheduler_type",
    "training.lora_rank": f"{MODEL}.lora_rank",
    "training.lora_alpha": f"{MODEL}.lora_alpha",
    "training.lora_target_modules": f"{MODEL}.target_modules",
    "training.gradient_checkpointing": f"{MODEL}.enable_gradient_checkpointing",
    "training.eval_episodes": "trainer.test_freq",
    "checkpoint.output_dir": "trainer.default_local_dir",
    "checkpoint.run_name": "trainer.experiment_name",
    "checkpoint.save_interval": "trainer.save_freq",
    "checkpoint.keep_last_n": "trainer.max_actor_ckpt_to_keep",
    "environment.name": OWN_SECTION,
    "environment.max_steps": OWN_SECTION,
    "environment.params": OWN_SECTION,
    "environment.reward": OWN_SECTION,
    "ray.use_ray": OWN_SECTION,  # VERL is always on Ray
    "ray.num_learners": "trainer.n_gpus_per_node",
    "ray.gpus_per_worker": "trainer.n_gpus_per_node",
    "ray.address": "ray_kwargs.ray_init.address",
    "training.eval_fraction": OWN_SECTION,
    "logging.level": OWN_SECTION,
    "logging.sinks": "trainer.logger",
    "logging.episodes_gb": OWN_SECTION,  # VERL keeps no episodes
    "reward": OWN_SECTION,
    "tools": OWN_SECTION,
    "parser": OWN_SECTION,
    "system_prompt": OWN_SECTION,
    "limits.max_turns": f"{ROLLOUT}.multi_turn.max_assistant_turns",
    "limits.max_tokens_per_turn": "data.max_response_length",
    "limits.max_tokens": "data.max_response_length",
} | {
    f"{section}.{name}": OWN_SECTION
    for section in ("dataset", "eval_dataset")
    for name in ("path", "split", "prompt_key", "columns", "max_rows")
} | {
    f"limits.{name}": OWN_SECTION
    for name in (
        "max_tool_calls", "max_seconds", "max_observation", "reset_timeout", "step_timeout",
        "tool_timeout", "generation_timeout", "reward_timeout", "close_timeout",
    )
}  # fmt: skip
