"""The sections of the settings; `environment.py` has those of environments."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt

from turnwise.config.fields import (
    Episodes,
    NonNegative,
    NonNegativeFloat,
    Positive,
    PositiveFloat,
    Probability,
    Seconds,
    Section,
    setting,
)

LossAggregation = Literal[
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
    "seq-mean-token-mean",
]

Thoughts = Literal["keep", "as_template"]
"""What becomes of thoughts in later prompts. `keep`: they stay, and the conversation only grows.
`as_template`: what the chat template writes; where it drops thoughts, a branch begins."""

ErrorPolicy = Literal["retry", "drop_group", "fail"]
"""What to do with an episode that failed: play it again with a fresh environment (and keep the
failure if it fails each time), leave out its whole group, or stop."""

_TURNS_WITHOUT_LIMIT = 64
"""Turns of an episode that no environment limits: an agent's, and one with tools."""

StaleCache = Literal["keep", "recompute"]
"""The KV cache that older weights computed: `keep` uses it for the rest of the conversation,
`recompute` computes it again with the new weights."""

KLEstimate = Literal["k1", "k2", "k3", "abs"]
KLLossType = Literal["k1", "k2", "k3", "abs", "k1+", "k2+", "k3+", "abs+"]


@dataclass
class ModelConfig(Section):
    """The model, and where it runs."""

    model_name: str = setting("tiny", "A built-in model (tiny, smollm2-135m) or a Hugging Face id.")
    local_path: str | None = setting(None, "A folder with the model; overrides model_name.")
    reference: str | None = setting(
        None,
        "The model that a KL term compares with, a name or folder; null: the model itself at the "
        "start, or after the warm start.",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = setting(
        "auto", "Precision of the weights; auto: float32 on a CPU, bfloat16 on a GPU."
    )
    load_in_4bit: bool = setting(
        False, "Load the weights in 4 bits (NF4, bitsandbytes), to train adapters on them (QLoRA)."
    )
    device: str = setting("auto", "cpu, cuda, cuda:1 ...; auto: a GPU if there is one.")
    tensor_parallel_size: Positive = setting(1, "GPUs over which one copy of the model is split.")
    trust_remote_code: bool = setting(False, "Run the Python code that a model brings along.")


@dataclass
class InferenceConfig(Section):
    """Sampling from the model, and the length of a conversation."""

    backend: str = setting("local", "The engine: local, transformers, vllm, sglang, file.py:Class.")
    url: str | None = setting(None, "A running vLLM or SGLang server; null starts the engine.")
    options: dict[str, Any] = setting(
        {}, "Options of the engine, for example {gpu_memory_utilization: 0.4, max_model_len: 8192}."
    )
    max_tokens: Positive = setting(64, "Maximum tokens of one turn of the model.")
    temperature: NonNegativeFloat = setting(1.0, "Sampling temperature; 0 is greedy.")
    top_p: Probability = setting(1.0, "Nucleus sampling: probability mass to sample from.")
    enable_thinking: bool | None = setting(None, "Whether the model thinks; null: as the template.")
    thoughts: Thoughts | None = setting(
        None,
        "Thoughts in later prompts: keep leaves them; as_template does as the chat template; null: "
        "keep in environments, as an agent sends them.",
    )
    summary_prompt: str | None = setting(
        None, "The message that asks for a summary (limits.max_context_tokens); null: a default."
    )
    multi_turn: bool = setting(True, "False ends every episode after its first action.")
    max_turns: Positive | None = setting(
        None, "Maximum turns of an episode; null: max_steps; with tools or an agent at least 64."
    )
    stale_kv: StaleCache = setting(
        "keep",
        "The KV cache of conversations under way when new weights arrive (training.max_staleness): "
        "keep uses it as it is, recompute computes it again with the new weights.",
    )
    start_timeout: Seconds | None = setting(900.0, "Seconds for an engine to start; null: any.")
    stall_timeout: Seconds | None = setting(
        900.0,
        "Seconds without any result from the engine, while episodes wait for it, or in which code "
        "of yours blocks all episodes, after which the run stops; null disables it.",
    )


@dataclass
class TrainingConfig(Section):
    """The learning algorithm and its hyperparameters."""

    adv_estimator: str = setting("gae", "Advantage estimator: gae, grpo, rloo ..., file.py:name.")
    adv_options: dict[str, Any] = setting({}, "Options of the estimator: {norm_by_std: false} ...")
    learning_rate: PositiveFloat = setting(1e-4, "Learning rate.")
    gamma: Annotated[float, Ge(0), Le(1)] = setting(1.0, "Discount factor per sampled token.")
    lam: Annotated[float, Ge(0), Le(1)] = setting(0.95, "Lambda of GAE.")
    clip_ratio: Annotated[float, Gt(0), Lt(1)] = setting(0.2, "PPO's clip range.")
    clip_ratio_low: NonNegativeFloat | None = setting(None, "Lower clip range; null: clip_ratio.")
    clip_ratio_high: NonNegativeFloat | None = setting(None, "Upper clip range; null: clip_ratio.")
    num_epochs: Positive = setting(10, "Epochs of a run.")
    max_steps: Positive | None = setting(None, "Training steps of a run; null: num_epochs counts.")
    steps_per_epoch: Positive | None = setting(
        None, "Training steps of an epoch; null: one pass over the dataset, 10 without a dataset."
    )
    batch_size: Episodes = setting(
        32, "Starts (seeds, or rows of a dataset) of a training step, each played group_size times."
    )
    group_size: Episodes | None = setting(
        None, "Episodes per start; null: 8 for estimators that compare a group, else 1."
    )
    resample: NonNegative = setting(
        0, "Rounds of replacing zero-variance groups (all rewards of a group are equal) by others."
    )
    max_staleness: NonNegative = setting(
        0,
        "Updates by which an episode's oldest token may be behind the weights that are trained on "
        "it. 0: play, then learn; above: episodes go on while the learner updates.",
    )
    on_error: ErrorPolicy = setting("retry", "A failed episode; retry: three tries, then without.")
    use_kl_in_reward: bool = setting(False, "Subtract a KL penalty from the rewards.")
    kl_coef: NonNegativeFloat = setting(0.01, "Weight of the KL penalty.")
    kl_target: PositiveFloat | None = setting(None, "KL to which kl_coef adapts; null: constant.")
    kl_horizon: Positive = setting(10_000, "Episodes over which kl_coef adapts to kl_target.")
    kl_penalty: KLEstimate = setting("k1", "Estimator of the KL in the rewards.")
    update_epochs: Positive = setting(1, "Passes over each batch of episodes.")
    mini_batch_size: Positive | None = setting(None, "Episodes per optimizer step; null: all.")
    micro_batch_tokens: Positive | None = setting(
        None,
        "Tokens per forward pass: memory and speed depend on it, the result does not; null: 4,096 "
        "on a CPU, as many as fit into half of the free memory on a GPU.",
    )
    policy_loss: str = setting("ppo", "Policy loss: ppo, gspo, cispo, reinforce ..., file.py:name.")
    policy_loss_options: dict[str, Any] = setting({}, "Options of the loss: {tau_neg: 1.1} ...")
    loss_agg_mode: LossAggregation | None = setting(
        None, "Aggregation of token losses; null keeps the policy loss's default."
    )
    entropy_coef: NonNegativeFloat = setting(0.0, "Weight of the entropy bonus.")
    kl_loss_coef: NonNegativeFloat = setting(0.0, "Weight of a KL term in the loss.")
    kl_loss_type: KLLossType = setting("k3+", "KL estimator; with + the gradient is the KL's own.")
    target_kl: PositiveFloat | None = setting(
        None, "An update ends early when the policy's KL exceeds 1.5 times this; null disables it."
    )
    importance_level: Literal["token", "sequence"] | None = setting(
        "token",
        "How the loss corrects for log-probs of the sampler that differ from the learner's: by "
        "the ratio of each token or of the whole sequence; null disables the correction.",
    )
    importance_bounds: PositiveFloat | list[float] = setting(
        2.0, "Larger ratios are clipped to this; with [lower, upper], tokens outside are left out."
    )
    max_log_prob_gap: PositiveFloat | Literal["auto"] | None = setting(
        "auto",
        "A run stops when the learner's log-probs differ by more from the sampler's: the largest "
        "difference (auto: 0.01) where both compute in float32 on the same weights, else the mean "
        "(auto: 0.5); null disables the check.",
    )
    critic: Literal["shared", "separate"] = setting(
        "shared", "The trunk of the value head, if one is needed: the policy's own, or a copy."
    )
    value_coef: NonNegativeFloat = setting(0.5, "Weight of the value loss.")
    value_clip: PositiveFloat | None = setting(
        0.2, "Clip range around the old values; null disables it."
    )
    max_grad_norm: PositiveFloat | None = setting(1.0, "Maximum norm of the gradient; null: none.")
    optimizer: str = setting(
        "adamw", "adamw; muon for hidden matrices, AdamW for the rest; or file.py:function."
    )
    optimizer_options: dict[str, Any] = setting({}, "More of its arguments: momentum of muon ...")
    weight_decay: NonNegativeFloat = setting(0.0, "Weight decay of the optimizer.")
    adam_betas: list[float] = setting([0.9, 0.95], "The two betas of AdamW.")
    adam_epsilon: PositiveFloat = setting(1e-8, "The epsilon of AdamW.")
    offload_optimizer: bool = setting(
        False, "Keep master weights and AdamW's moments on the CPU: less GPU memory, slower steps."
    )
    warmup_steps: NonNegative = setting(0, "Steps of linear learning-rate warmup.")
    lr_schedule: Literal["constant", "linear", "cosine"] = setting(
        "constant", "Learning-rate schedule after the warmup; linear and cosine decay to 0."
    )
    lora_rank: NonNegative = setting(0, "Rank of LoRA adapters; 0 trains all weights.")
    lora_alpha: Positive | None = setting(None, "Scales updates by alpha / rank; null: 2 * rank.")
    lora_target_modules: str | list[str] = setting(
        "all-linear",
        "The layers that get adapters, by the ends of their names, for example [q_proj, v_proj], "
        "or a regular expression; all-linear: every linear layer but the output layer.",
    )
    lora_dropout: Annotated[float, Ge(0), Lt(1)] = setting(
        0.0, "Dropout on the adapters' inputs in the update; sampling and scoring have none."
    )
    use_rslora: bool = setting(False, "Rank-stabilised LoRA: updates scaled by alpha / sqrt(rank).")
    gradient_checkpointing: bool | None = setting(
        None, "Recompute activations: less memory, more time; null: in as many layers as needed."
    )
    warm_start: str | None = setting(
        None, "Imitate: expert, random (the environment's players) or a file of conversations."
    )
    warm_start_steps: Annotated[int, Ge(1), Le(1_000_000)] = setting(
        100, "Steps of the warm start."
    )
    warm_start_learning_rate: PositiveFloat = setting(1e-3, "Learning rate of the warm start.")
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
    seed: Annotated[int, Ge(0), Lt(2**63)] = setting(0, "Seed for reproducible runs.")

    def epoch_steps(self, num_rows: int | None) -> int:
        """Return the steps of an epoch; `num_rows` is the size of the dataset, if there is one."""
        if self.steps_per_epoch is not None:
            return self.steps_per_epoch
        return 10 if num_rows is None else -(-num_rows // self.batch_size)


@dataclass
class CheckpointConfig(Section):
    """Where runs are stored, and how often checkpoints are saved."""

    output_dir: str = setting("runs", "The folder of the runs.")
    run_name: str | None = setting(None, "Name of the run's folder; null: that of the environment.")
    save_interval: Positive | None = setting(None, "Epochs between checkpoints; null: at most 1.")
    save_steps: Positive | None = setting(
        None,
        "Steps between two checkpoints, in place of save_interval. Without both: after each epoch, "
        "within it every 50 steps or 10 minutes, and after the best evaluation so far.",
    )
    keep_last_n: Positive = setting(3, "How many of the newest checkpoints to keep.")
    best_metric: str = setting(
        "eval/greedy/reward",
        "The checkpoint with the highest value of this metric is kept too; of equals the latest.",
    )


@dataclass
class DatasetConfig(Section):
    """A dataset whose rows are prompts, or tasks of an environment."""

    path: str | list[str] | None = setting(None, "Files (.jsonl, .json, .parquet), or a folder.")
    split: str | None = setting(None, "The split of a folder, for example train.")
    prompt_key: str = setting("prompt", "The column with the prompt, without environment.")
    columns: dict[str, str] = setting({}, "Columns to rename: {new name: name in the file}.")
    max_rows: Positive | None = setting(None, "Use only the first rows; null uses all.")

    @property
    def paths(self) -> list[str]:
        """The files as a list."""
        if self.path is None:
            return []
        return [self.path] if isinstance(self.path, str) else self.path


@dataclass
class LimitsConfig(Section):
    """Limits of one episode; null disables a limit."""

    max_turns: Positive | None = setting(None, "Maximum turns; null: inference.max_turns.")
    max_tokens_per_turn: Positive | None = setting(None, "Per turn; null: inference.max_tokens.")
    max_thinking_tokens: Positive | None = setting(None, "Tokens before an open thought is closed.")
    max_tokens: Positive | None = setting(None, "Tokens of a conversation; null: model's context.")
    max_context_tokens: Positive | None = setting(
        None, "Tokens of a prompt above which the model continues from a summary; null: none."
    )
    max_tool_calls: NonNegative | None = setting(100, "Maximum tool calls of an episode.")
    max_seconds: Seconds | None = setting(1800.0, "Maximum seconds of an episode.")
    max_observation: Positive | None = setting(50_000, "Maximum characters of one observation.")
    reset_timeout: Seconds | None = setting(120.0, "Seconds to create and reset an environment.")
    step_timeout: Seconds | None = setting(60.0, "Seconds for one step.")
    tool_timeout: Seconds | None = setting(600.0, "Seconds for one tool call.")
    generation_timeout: Seconds | None = setting(600.0, "Seconds for one turn of the model.")
    reward_timeout: Seconds | None = setting(60.0, "Seconds for the reward function.")
    close_timeout: Seconds | None = setting(10.0, "Seconds to close an environment.")

    def turn_limit(self, max_steps: int | None, *, has_tools: bool = False) -> int:
        """Return the turns after which an episode is truncated.

        `max_steps` is the environment's own limit; None for an agent, which has none. A turn that
        calls tools is no step, so with tools `max_steps` does not bound the turns.

        >>> LimitsConfig().turn_limit(15), LimitsConfig(max_turns=10).turn_limit(15)
        (15, 10)
        """
        if self.max_turns is not None:
            return self.max_turns
        if max_steps is None:
            return _TURNS_WITHOUT_LIMIT
        return max(max_steps, _TURNS_WITHOUT_LIMIT) if has_tools else max_steps


@dataclass
class RayConfig(Section):
    """Running on a Ray cluster."""

    use_ray: bool = setting(False, "Run episodes and learners as Ray actors.")
    num_actors: Positive = setting(1, "Workers that play episodes.")
    min_actors: Positive | None = setting(
        None, "Episode workers with which a run starts; others join when there is room; null: all."
    )
    num_learners: Positive = setting(1, "Workers that compute each update together.")
    context_parallel_size: Positive = setting(1, "Learners that split the tokens of each episode.")
    gpus_per_worker: NonNegativeFloat = setting(0.0, "GPUs of each worker; with 0.5 two share one.")
    address: str | None = setting(None, "auto, or host:port of the head; null starts a cluster.")
    max_failures: NonNegative = setting(
        3, "Losses of workers that a step survives; then the run ends."
    )


@dataclass
class LoggingConfig(Section):
    """What a run logs."""

    level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "The lowest level that is logged."
    )
    sinks: list[str] = setting(
        [], "Also send metrics to: tensorboard, wandb, mlflow, trackio, or file.py:Class."
    )
    wandb: dict[str, Any] = setting(
        {}, "The run in Weights & Biases: project, name, entity, group, job_type, tags, notes."
    )
    episodes_gb: NonNegativeFloat = setting(2.0, "Gigabytes for episodes; more are not kept.")
