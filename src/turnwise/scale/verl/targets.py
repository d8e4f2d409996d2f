"""Names in VERL's config and registries: what VERL calls a setting or an algorithm, or lacks.

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

UNSUPPORTED = frozenset((
    "expert", "model.load_in_4bit", "checkpoint.best_metric", "ray.max_failures",
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
