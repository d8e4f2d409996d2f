"""The words of TRL, verl, verifiers, OpenRLHF and peft, answered with ours.

A user who brings a config from there gets the right name instead of one that is spelt alike.
"""

from __future__ import annotations

from collections.abc import Mapping

_BATCH = (
    "training.batch_size (starts in one step), training.mini_batch_size (episodes per optimizer "
    "step) and training.micro_batch_tokens (memory)"
)
_KL = "training.kl_loss_coef (a KL term in the loss), or training.use_kl_in_reward and kl_coef"
_PROMPT = "limits.max_tokens, the tokens of a whole conversation"
_VERL = "a section of verl's own config: turnwise train my.yaml --engine verl section.name=value"
_EVAL = "training.eval_episodes and training.eval_steps"
_GPUS = "ray.num_learners and ray.num_actors (with ray.use_ray), and model.tensor_parallel_size"

SETTINGS: Mapping[str, str] = {
    # TRL, transformers and peft
    "lr": "training.learning_rate",
    "beta": _KL,
    "num_generations": "training.group_size",
    "per_device_train_batch_size": _BATCH,
    "gradient_accumulation_steps": _BATCH,
    "generation_batch_size": _BATCH,
    "max_completion_length": "inference.max_tokens, the tokens of one turn",
    "max_new_tokens": "inference.max_tokens, the tokens of one turn",
    "max_prompt_length": _PROMPT,
    "num_train_epochs": "training.num_epochs",
    "num_iterations": "training.update_epochs",
    "epsilon": "training.clip_ratio",
    "epsilon_high": "training.clip_ratio_high",
    "loss_type": "training.policy_loss and training.loss_agg_mode",
    "scale_rewards": "training.adv_options: {norm_by_std: false}",
    "reward_funcs": "reward: file.py:function",
    "reward_fn": "reward: file.py:function",
    "reward_weights": "reward: [{function: file.py:name, weight: 0.5}, ...]",
    "use_vllm": "inference.backend: vllm",
    "report_to": "logging.sinks",
    "warmup_ratio": "training.warmup_steps",
    "lr_scheduler_type": "training.lr_schedule",
    "bf16": "model.dtype: bfloat16",
    "fp16": "model.dtype: float16",
    "model_name_or_path": "model.model_name, or model.local_path for a folder",
    "dataset_name": "dataset.path",
    "train_dataset": "dataset",
    "ppo_epochs": "training.update_epochs",
    "num_ppo_epochs": "training.update_epochs",
    "cliprange": "training.clip_ratio",
    "cliprange_value": "training.value_clip",
    "vf_coef": "training.value_coef",
    "lora_r": "training.lora_rank",
    "target_modules": "training.lora_target_modules",
    # verl
    "actor_rollout_ref": _VERL,
    "algorithm": _VERL,
    "data": _VERL,
    "trainer": _VERL,
    "critic": _VERL,
    "rollout_n": "training.group_size",
    "train_batch_size": "training.batch_size",
    "ppo_mini_batch_size": "training.mini_batch_size, counted in episodes",
    "ppo_micro_batch_size_per_gpu": "training.micro_batch_tokens, counted in tokens",
    "ppo_max_token_len_per_gpu": "training.micro_batch_tokens",
    "use_kl_loss": "training.kl_loss_coef above 0",
    "entropy_coeff": "training.entropy_coef",
    "max_response_length": "inference.max_tokens, the tokens of one turn",
    "total_epochs": "training.num_epochs",
    "total_training_steps": "training.max_steps",
    "n_gpus_per_node": _GPUS,
    "tensor_model_parallel_size": "model.tensor_parallel_size",
    "gpu_memory_utilization": "inference.options: {gpu_memory_utilization: 0.4}",
    "save_freq": "checkpoint.save_interval in epochs, or checkpoint.save_steps",
    "test_freq": _EVAL,
    "eval_strategy": _EVAL,
    "experiment_name": "checkpoint.run_name",
    "max_assistant_turns": "inference.max_turns",
    # verifiers
    "rollouts_per_example": "training.group_size",
    "env_id": "environment.name",
    "vf_env": "environment.name",
    "env_args": "environment.params",
    "rubric": "reward: file.py:function",
    "max_seq_len": _PROMPT,
    # OpenRLHF
    "actor_learning_rate": "training.learning_rate",
    "critic_learning_rate": "training.learning_rate; training.value_coef weighs the value loss",
    "n_samples_per_prompt": "training.group_size",
    "rollout_batch_size": "training.batch_size",
    "micro_train_batch_size": "training.micro_batch_tokens, counted in tokens",
    "init_kl_coef": "training.kl_coef, with training.use_kl_in_reward: true",
    "advantage_estimator": "training.adv_estimator",
    "generate_max_len": "inference.max_tokens, the tokens of one turn",
    "prompt_max_len": _PROMPT,
    "eps_clip": "training.clip_ratio",
    "lambd": "training.lam",
    "pretrain": "model.model_name, or model.local_path for a folder",
    "prompt_data": "dataset.path",
    "input_key": "dataset.prompt_key",
    "dynamic_filtering": "training.resample",
}
"""Names of settings elsewhere, each with the setting of ours."""

_DAPO = (
    "DAPO is adv_estimator: grpo with clip_ratio_high: 0.28, loss_agg_mode: token-mean and "
    "resample: 3."
)

ALGORITHMS: Mapping[str, str] = {
    "ppo": "PPO is adv_estimator: gae with policy_loss: ppo.",
    "vanilla": "PPO's loss is policy_loss: ppo.",
    "dapo": _DAPO,
    "dr-grpo": "Dr. GRPO is adv_estimator: dr_grpo.",
    "drgrpo": "Dr. GRPO is adv_estimator: dr_grpo.",
    "bnpo": "BNPO is adv_estimator: grpo with loss_agg_mode: token-mean.",
    "group_norm": "It is adv_estimator: grpo.",
    "reinforce": "REINFORCE is policy_loss: reinforce with adv_estimator: rloo or another.",
    "reinforce++": "It is adv_estimator: reinforce_plus_plus.",
    "reinforce_baseline": "It is adv_estimator: reinforce_plus_plus_baseline.",
    "a2c": "A2C is adv_estimator: gae with policy_loss: reinforce.",
}
"""Names of algorithms elsewhere, each with our settings of it."""


def answer_setting(name: str) -> str | None:
    """Return the end of an error message for a setting of another library; None for other names.

    >>> answer_setting("num_generations")
    'Here it is training.group_size.'
    """
    ours = SETTINGS.get(name.rpartition(".")[2].lower().replace("-", "_"))
    return None if ours is None else f"Here it is {ours}."
