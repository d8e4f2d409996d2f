"""The section `training`."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt

from turnwise.config.fields import Episodes, Positive, Section, setting

LossAggregation = Literal[
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
    "seq-mean-token-mean",
]

KLEstimate = Literal["k1", "k2", "k3", "abs"]
KLLossType = Literal["k1", "k2", "k3", "abs", "k1+", "k2+", "k3+", "abs+"]


@dataclass
class TrainingConfig(Section):
    """The learning algorithm and its hyperparameters."""

    adv_estimator: str = setting(
        "gae", "Advantage estimator: gae, grpo, rloo ..., or your own: file.py:name."
    )
    adv_options: dict[str, Any] = setting(
        {}, "Options of the advantage estimator, for example {norm_by_std: false} of grpo."
    )
    learning_rate: Annotated[float, Gt(0)] = setting(1e-4, "Learning rate.")
    gamma: Annotated[float, Ge(0), Le(1)] = setting(1.0, "Discount factor per sampled token.")
    lam: Annotated[float, Ge(0), Le(1)] = setting(0.95, "Lambda of GAE.")
    clip_ratio: Annotated[float, Gt(0), Lt(1)] = setting(0.2, "PPO's clip range.")
    clip_ratio_low: Annotated[float, Ge(0)] | None = setting(
        None, "Lower clip range, where it differs; null: clip_ratio."
    )
    clip_ratio_high: Annotated[float, Ge(0)] | None = setting(
        None, "Upper clip range, where it differs (clip-higher); null: clip_ratio."
    )
    num_epochs: Positive = setting(10, "Epochs of a run.")
    max_steps: Positive | None = setting(
        None, "Training steps of a run, in place of num_epochs; null: num_epochs."
    )
    steps_per_epoch: Positive | None = setting(
        None,
        "Training steps of an epoch; null: one pass over the dataset, 10 steps without a dataset.",
    )
    batch_size: Episodes = setting(
        32,
        "Starts (seeds, or rows of a dataset) in one training step, each played group_size times.",
    )
    group_size: Episodes | None = setting(
        None, "Episodes per start; null: 8 for estimators that compare a group, else 1."
    )
    resample: Annotated[int, Ge(0)] = setting(
        0,
        "Rounds of replacing zero-variance groups, whose episodes all have the same reward, by "
        "others.",
    )
    max_staleness: Annotated[int, Ge(0)] = setting(
        0,
        "Updates by which an episode's oldest token may be behind the weights that are trained on "
        "it. 0: play, then learn; above: episodes go on while the learner updates.",
    )
    on_error: Literal["retry", "drop_group", "fail"] = setting(
        "retry", "How to treat a failed episode; retry: up to three tries, then without it."
    )
    use_kl_in_reward: bool = setting(False, "Subtract a KL penalty from the rewards.")
    kl_coef: Annotated[float, Ge(0)] = setting(0.01, "Weight of the KL penalty.")
    kl_target: Annotated[float, Gt(0)] | None = setting(
        None, "Target KL of an adaptive kl_coef; null keeps kl_coef constant."
    )
    kl_horizon: Positive = setting(10_000, "Episodes over which kl_coef adapts to kl_target.")
    kl_penalty: KLEstimate = setting("k1", "Estimator of the KL in the rewards.")
    update_epochs: Positive = setting(1, "Passes over each batch of episodes.")
    mini_batch_size: Positive | None = setting(
        None, "Episodes per optimizer step; null: the whole batch."
    )
    micro_batch_tokens: Positive | None = setting(
        None,
        "Tokens per forward pass: memory and speed depend on it, the result does not; null: 4,096 "
        "on a CPU, as many as fit into half of the free memory on a GPU.",
    )
    policy_loss: str = setting(
        "ppo", "Policy loss: ppo, gspo, cispo, reinforce ..., or your own: file.py:name."
    )
    policy_loss_options: dict[str, Any] = setting(
        {}, "Options of the policy loss, for example {tau_neg: 1.1} of sapo."
    )
    loss_agg_mode: LossAggregation | None = setting(
        None, "Aggregation of token losses; null keeps the policy loss's default."
    )
    entropy_coef: Annotated[float, Ge(0)] = setting(0.0, "Weight of the entropy bonus.")
    kl_loss_coef: Annotated[float, Ge(0)] = setting(0.0, "Weight of a KL term in the loss.")
    kl_loss_type: KLLossType = setting(
        "k3+", "Estimator of the KL in the loss; with + its gradient is that of the KL itself."
    )
    target_kl: Annotated[float, Gt(0)] | None = setting(
        None, "An update ends early when the policy's KL exceeds 1.5 times this; null disables it."
    )
    importance_level: Literal["token", "sequence"] | None = setting(
        "token",
        "How the loss corrects for log-probs of the sampler that differ from the learner's: by "
        "the ratio of each token or of the whole sequence; null disables the correction.",
    )
    importance_bounds: Annotated[float, Gt(0)] | list[float] = setting(
        2.0,
        "Larger ratios are clipped to this bound; with [lower, upper], tokens whose ratio is "
        "outside are left out.",
    )
    max_log_prob_gap: Annotated[float, Gt(0)] | Literal["auto"] | None = setting(
        "auto",
        "A run stops when the learner's log-probs differ by more from the sampler's: the largest "
        "difference (auto: 0.01) where both compute in float32 on the same weights, else the mean "
        "(auto: 0.5); null disables the check.",
    )
    critic: Literal["shared", "separate"] = setting(
        "shared", "The trunk of the value head, if one is needed: the policy's own, or a copy."
    )
    value_coef: Annotated[float, Ge(0)] = setting(0.5, "Weight of the value loss.")
    value_clip: Annotated[float, Gt(0)] | None = setting(
        0.2, "Clip range of the values around the old ones; null disables it."
    )
    max_grad_norm: Annotated[float, Gt(0)] | None = setting(
        1.0, "Larger gradients are scaled down to this norm; null disables it."
    )
    optimizer: str = setting(
        "adamw",
        "adamw; muon for hidden matrices and AdamW for the rest; or file.py:function of your own.",
    )
    optimizer_options: dict[str, Any] = setting(
        {}, "More arguments of the optimizer, such as momentum of muon."
    )
    weight_decay: Annotated[float, Ge(0)] = setting(0.0, "Weight decay of the optimizer.")
    adam_betas: list[float] = setting([0.9, 0.95], "The two betas of AdamW.")
    adam_epsilon: Annotated[float, Gt(0)] = setting(1e-8, "The epsilon of AdamW.")
    offload_optimizer: bool = setting(
        False,
        "Keep master weights and AdamW's moments in the memory of the CPU, which makes the step: "
        "12 bytes per weight less on the GPU, some seconds more per step.",
    )
    warmup_steps: Annotated[int, Ge(0)] = setting(0, "Steps of linear learning-rate warmup.")
    lr_schedule: Literal["constant", "linear", "cosine"] = setting(
        "constant", "Learning-rate schedule after the warmup; linear and cosine decay to 0."
    )
    lora_rank: Annotated[int, Ge(0)] = setting(0, "Rank of LoRA adapters; 0 trains all weights.")
    lora_alpha: Positive | None = setting(
        None, "LoRA's alpha: an update is scaled by alpha / rank; null: twice the rank."
    )
    lora_target_modules: str | list[str] = setting(
        "all-linear",
        "The layers that get adapters, by the ends of their names, for example [q_proj, v_proj], "
        "or a regular expression; all-linear: every linear layer but the output layer.",
    )
    lora_dropout: Annotated[float, Ge(0), Lt(1)] = setting(
        0.0, "Dropout on the adapters' inputs in the update; sampling and scoring have none."
    )
    use_rslora: bool = setting(
        False, "Rank-stabilised LoRA: an update is scaled by alpha / sqrt(rank)."
    )
    gradient_checkpointing: bool | None = setting(
        None,
        "Recompute activations in the backward pass: less memory, a third more time; null: those "
        "of as many layers as the memory of a GPU requires.",
    )
    warm_start: str | None = setting(
        None,
        "Supervised warm start on: expert, random (the environment's players) or a file of "
        "conversations.",
    )
    warm_start_steps: Annotated[int, Ge(1), Le(1_000_000)] = setting(
        100, "Steps of the warm start."
    )
    warm_start_learning_rate: Annotated[float, Gt(0)] = setting(
        1e-3, "Learning rate of the warm start."
    )
    eval_episodes: Annotated[int, Ge(0), Le(1_000_000)] = setting(
        0, "Episodes of an evaluation on held-out seeds, greedy and sampled; 0 disables it."
    )
    eval_steps: Positive | None = setting(
        None,
        "Steps between two evaluations; null: after each epoch, and every 50 steps of a longer "
        "one. The last step is always evaluated.",
    )
    eval_fraction: Annotated[float, Ge(0), Lt(1)] | None = setting(
        0.05,
        "Share of the dataset's rows that is held out for evaluation, where eval_dataset names no "
        "others: at least 16 rows, none of fewer than 64 different ones; null holds none out.",
    )
    seed: Annotated[int, Ge(0)] = setting(0, "Seed for reproducible runs.")

    def epoch_steps(self, num_rows: int | None) -> int:
        """Return the steps of an epoch; `num_rows` is the size of the dataset, if there is one."""
        if self.steps_per_epoch is not None:
            return self.steps_per_epoch
        return 10 if num_rows is None else -(-num_rows // self.batch_size)
