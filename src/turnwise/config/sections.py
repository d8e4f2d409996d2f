"""The sections `model`, `inference`, `checkpoint`, `dataset`, `limits`, `ray` and `logging`."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge

from turnwise.config.fields import Positive, Probability, Seconds, Section, setting


@dataclass
class ModelConfig(Section):
    """The model, and where it runs."""

    model_name: str = setting(
        "tiny", "A built-in model (tiny, smollm2-135m) or a Hugging Face model id."
    )
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
        False,
        "Load the weights in 4 bits (NF4) through bitsandbytes, to train adapters on them (QLoRA).",
    )
    device: str = setting("auto", "cpu, cuda, cuda:1 ...; auto: a GPU if there is one.")
    tensor_parallel_size: Positive = setting(1, "GPUs over which one copy of the model is split.")
    trust_remote_code: bool = setting(False, "Run the Python code that a model brings along.")


@dataclass
class InferenceConfig(Section):
    """Sampling from the model, and the length of a conversation."""

    backend: str = setting(
        "local", "The engine: local, transformers, vllm, sglang, scripted, or your file.py:Class."
    )
    url: str | None = setting(
        None, "A vLLM or SGLang server that runs already; null starts the engine."
    )
    options: dict[str, Any] = setting(
        {}, "Options of the engine, for example {gpu_memory_utilization: 0.4, max_model_len: 8192}."
    )
    max_tokens: Positive = setting(64, "Maximum tokens of one turn of the model.")
    temperature: Annotated[float, Ge(0)] = setting(1.0, "Sampling temperature; 0 is greedy.")
    top_p: Probability = setting(1.0, "Nucleus sampling: probability mass to sample from.")
    enable_thinking: bool | None = setting(
        None, "Whether the chat template lets the model think; null: the template's default."
    )
    thoughts: Literal["keep", "as_template"] | None = setting(
        None,
        "Thoughts in later prompts: keep leaves them; as_template does as the chat template; null: "
        "keep in environments, as an agent sends them.",
    )
    summary_prompt: str | None = setting(
        None,
        "The message that asks the model for a summary (limits.max_context_tokens); null: a "
        "default text.",
    )
    multi_turn: bool = setting(True, "False ends every episode after its first action.")
    max_turns: Positive | None = setting(
        None,
        "Maximum turns of the model in one episode; null: the environment's own limit, max_steps. "
        "With tools or an agent at least 64.",
    )
    stale_kv: Literal["keep", "recompute"] = setting(
        "keep",
        "The KV cache of conversations under way when new weights arrive (training.max_staleness): "
        "keep uses it as it is, recompute computes it again with the new weights.",
    )
    start_timeout: Seconds | None = setting(
        900.0, "Seconds that a vLLM or SGLang engine may take to start; null disables the limit."
    )
    stall_timeout: Seconds | None = setting(
        900.0,
        "Seconds without any result from the engine, while episodes wait for it, or in which code "
        "of yours blocks all episodes, after which the run stops; null disables it.",
    )


@dataclass
class CheckpointConfig(Section):
    """Where runs are stored, and how often checkpoints are saved."""

    output_dir: str = setting("runs", "The folder of the runs.")
    run_name: str | None = setting(
        None, "Name of the run's folder; null: the environment's name, with a number if needed."
    )
    save_interval: Positive | None = setting(
        None, "Epochs between two checkpoints; null: 1, and more often within long epochs."
    )
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

    path: str | list[str] | None = setting(
        None, "A .jsonl, .json or .parquet file, a list of files, or a folder with splits."
    )
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
    max_tokens_per_turn: Positive | None = setting(
        None, "Maximum tokens of one turn; null: inference.max_tokens."
    )
    max_thinking_tokens: Positive | None = setting(
        None, "Tokens of one turn after which an open thought is closed; null: no budget."
    )
    max_tokens: Positive | None = setting(
        None, "Maximum tokens of a conversation with its observations; null: the model's context."
    )
    max_context_tokens: Positive | None = setting(
        None,
        "Tokens of a prompt above which the model summarises the conversation and continues from "
        "the summary; null: no summaries.",
    )
    max_tool_calls: Annotated[int, Ge(0)] | None = setting(100, "Maximum tool calls of an episode.")
    max_seconds: Seconds | None = setting(1800.0, "Maximum seconds of an episode.")
    max_observation: Positive | None = setting(50_000, "Maximum characters of one observation.")
    reset_timeout: Seconds | None = setting(120.0, "Seconds to create and reset an environment.")
    step_timeout: Seconds | None = setting(60.0, "Seconds for one step.")
    tool_timeout: Seconds | None = setting(600.0, "Seconds for one tool call.")
    generation_timeout: Seconds | None = setting(600.0, "Seconds for one turn of the model.")
    reward_timeout: Seconds | None = setting(60.0, "Seconds for the reward function.")
    close_timeout: Seconds | None = setting(10.0, "Seconds to close an environment.")


@dataclass
class RayConfig(Section):
    """Running on a Ray cluster."""

    use_ray: bool = setting(False, "Run episodes and learners as Ray actors.")
    num_actors: Positive = setting(1, "Workers that play episodes.")
    min_actors: Positive | None = setting(
        None,
        "Episode workers with which a run starts; others join when the cluster has room for them. "
        "null waits for all.",
    )
    num_learners: Positive = setting(1, "Workers that compute each update together.")
    context_parallel_size: Positive = setting(
        1, "Learners that split the tokens of each episode, where one is too long for a GPU."
    )
    gpus_per_worker: Annotated[float, Ge(0)] = setting(
        0.0, "GPUs of each worker; with 0.5 two workers share one."
    )
    address: str | None = setting(
        None, "Address of the cluster: auto, or host:port of its head; null starts a local one."
    )
    max_failures: Annotated[int, Ge(0)] = setting(
        3, "Losses of workers that one step survives; one more ends the run."
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
        {},
        "The run in Weights & Biases, for example {project: maze, name: first, tags: [grpo]}; also "
        "entity, group, job_type and notes.",
    )
    episodes_gb: Annotated[float, Ge(0)] = setting(
        2.0, "Gigabytes of disk for a run's episodes; when they are used up, no more are written."
    )
