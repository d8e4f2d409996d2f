"""All settings: plain dataclasses, a YAML file, and dotted overrides.

>>> config = ConfigStore()
>>> config.training.learning_rate = 3e-5
>>> config.validate().training.learning_rate
3e-05

A misspelt name is an error when it is written, not a setting that silently does nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NoReturn, Self

from annotated_types import Ge, Gt, Le, Lt

from turnwise.errors import ConfigError, did_you_mean
from turnwise.whole_files import write_whole
from turnwise.yaml_files import dump, line_of, parse_value, read_yaml

RUN = "<run>"
"""In the settings of a run: its own folder, as in `<run>/dataset.jsonl`."""

Positive = Annotated[int, Ge(1)]
Probability = Annotated[float, Gt(0), Le(1)]
Seconds = Annotated[float, Gt(0)]
LossAggregation = Literal[
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-sum-norm",
    "seq-mean-token-mean",
]


def setting(default: Any, help: str) -> Any:
    """A field with its default and its one line of help."""
    if isinstance(default, dict | list):
        return field(default_factory=lambda: type(default)(default), metadata={"help": help})
    return field(default=default, metadata={"help": help})


class Section:
    """Base of the sections: an unknown name is an error at once, with the nearest real one."""

    # Read by pydantic, which does the type checks: nothing unknown, nothing infinite.
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "allow_inf_nan": False}

    def __setattr__(self, name: str, value: Any) -> None:
        known = {f.name for f in dataclasses.fields(self)}  # type: ignore[arg-type]
        if name not in known:
            raise ConfigError(
                f"{type(self).__name__} has no setting {name!r}. {did_you_mean(name, known)}"
            )
        object.__setattr__(self, name, value)


@dataclass
class ModelConfig(Section):
    """Which model, and where it runs."""

    model_name: str = setting(
        "tiny", "A built-in model (tiny, smollm2-135m) or a Hugging Face model id."
    )
    local_path: str | None = setting(None, "A folder with the model, used instead of model_name.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = setting(
        "auto", "Precision of the weights; auto: float32 on a CPU, bfloat16 on a GPU."
    )
    device: str = setting("auto", "cpu, cuda, cuda:1 ...; auto: a GPU if there is one.")
    tensor_parallel_size: Positive = setting(1, "GPUs that one copy of the model is split over.")
    trust_remote_code: bool = setting(False, "Run Python code that comes with the model.")


@dataclass
class InferenceConfig(Section):
    """How the model is sampled, and how long a conversation may be."""

    backend: Literal["local", "transformers", "vllm", "sglang", "scripted"] = setting(
        "local", "The engine that generates."
    )
    max_tokens: Positive = setting(64, "Most tokens in one turn of the model.")
    temperature: Annotated[float, Ge(0)] = setting(1.0, "Sampling temperature; 0 is greedy.")
    top_p: Probability = setting(1.0, "Sample from the smallest set of tokens with this mass.")
    multi_turn: bool = setting(True, "False ends every episode after the first action.")
    max_turns: Positive = setting(10, "Most turns of the model in one episode.")
    stall_timeout: Annotated[float, Gt(0)] | None = setting(
        900.0,
        "Seconds without any result from the engine, while episodes wait for it, after which the "
        "run is saved and stops; null disables it.",
    )


@dataclass
class TrainingConfig(Section):
    """The learning algorithm and its numbers."""

    adv_estimator: str = setting("gae", "Advantage estimator: gae, grpo, rloo ...")
    learning_rate: Annotated[float, Gt(0)] = setting(1e-4, "Step size of the optimiser.")
    gamma: Annotated[float, Ge(0), Le(1)] = setting(1.0, "Discount per token of the policy.")
    lam: Annotated[float, Ge(0), Le(1)] = setting(0.95, "Lambda of GAE.")
    clip_ratio: Annotated[float, Gt(0), Lt(1)] = setting(0.2, "PPO's clip range.")
    num_epochs: Positive = setting(10, "How many epochs `fit` runs.")
    steps_per_epoch: Positive = setting(
        10, "Training steps in an epoch, where no dataset says how many there are."
    )
    batch_size: Positive = setting(
        32,
        "Starts (seeds, or rows of a dataset) in one training step, each played group_size times.",
    )
    group_size: Positive | None = setting(
        None, "Episodes from the same start; none: 8 for estimators that compare them, else 1."
    )
    resample: Annotated[int, Ge(0)] = setting(
        0, "Groups in which all earned the same are replaced by others, in so many rounds."
    )
    on_error: Literal["retry", "drop_group", "fail"] = setting(
        "retry", "What to do about an episode that failed; retry: three tries, then without it."
    )
    use_kl_in_reward: bool = setting(False, "Subtract a KL penalty from the rewards.")
    kl_coef: Annotated[float, Ge(0)] = setting(0.01, "Weight of the KL penalty.")
    kl_target: Annotated[float, Gt(0)] | None = setting(
        None, "The KL that the penalty's weight is steered towards; none: it stays as it is."
    )
    update_epochs: Positive = setting(1, "How often each batch is learned from.")
    mini_batch_size: Positive | None = setting(
        None, "Episodes in one step of the optimiser; none: the whole batch."
    )
    micro_batch_tokens: Positive | None = setting(
        None,
        "Tokens computed at once: memory and speed depend on it, the result does not; none: 4,096 "
        "on a CPU, what a fifth of its memory takes on a GPU.",
    )
    policy_loss: str = setting("ppo", "Policy loss: ppo, gspo, cispo, reinforce ...")
    loss_agg_mode: LossAggregation | None = setting(
        None, "How token losses become one number; none: as the policy loss has it."
    )
    entropy_coef: Annotated[float, Ge(0)] = setting(0.0, "Weight of the entropy bonus.")
    kl_loss_coef: Annotated[float, Ge(0)] = setting(0.0, "Weight of a KL term in the loss.")
    target_kl: Annotated[float, Gt(0)] | None = setting(
        None, "An update ends early when the policy has moved 1.5 times as far; none: never."
    )
    max_log_prob_gap: Annotated[float, Gt(0)] | Literal["auto"] | None = setting(
        "auto",
        "A run stops when the learner's log-probs differ by more from the sampler's: the largest "
        "difference (auto: 0.01) where both compute in float32 on the same weights, else the mean "
        "(auto: 0.5); null disables the check.",
    )
    critic: Literal["shared", "separate"] = setting(
        "shared", "Where the value head sits, if one is needed: the policy's trunk or a copy."
    )
    value_coef: Annotated[float, Ge(0)] = setting(0.5, "Weight of the value loss.")
    max_grad_norm: Annotated[float, Gt(0)] | None = setting(
        1.0, "Larger gradients are scaled down to this norm; none: never."
    )
    weight_decay: Annotated[float, Ge(0)] = setting(0.0, "Weight decay of AdamW.")
    warmup_steps: Annotated[int, Ge(0)] = setting(0, "Steps over which the step size rises.")
    lr_schedule: Literal["constant", "linear", "cosine"] = setting(
        "constant", "What the step size does afterwards; linear and cosine fall to 0."
    )
    lora_rank: Annotated[int, Ge(0)] = setting(0, "Rank of LoRA adapters; 0: train all weights.")
    gradient_checkpointing: bool = setting(
        False, "Compute layers again for the gradient: less memory, a third more time."
    )
    warm_start: str | None = setting(
        None,
        "Imitate first: expert, random (the environment's players) or a file of conversations.",
    )
    warm_start_steps: Positive = setting(100, "Steps of imitation.")
    warm_start_learning_rate: Annotated[float, Gt(0)] = setting(1e-3, "Their step size.")
    eval_episodes: Annotated[int, Ge(0)] = setting(
        0, "Episodes on held-out seeds after each epoch, greedy and sampled; 0: none."
    )
    eval_fraction: Annotated[float, Ge(0), Lt(1)] | None = setting(
        0.05,
        "Share of the dataset's rows that is held out for evaluation, where eval_dataset names no "
        "others: at least 16 rows, none of fewer than 64 different ones; null holds none out.",
    )
    seed: Annotated[int, Ge(0)] = setting(0, "Everything random in a run follows from it.")


@dataclass
class CheckpointConfig(Section):
    """Where runs are kept and how often they are saved."""

    output_dir: str = setting("runs", "Folder that holds the runs.")
    run_name: str | None = setting(
        None, "The run's own folder in it; none: the environment's name, and a number if needed."
    )
    save_interval: Positive = setting(1, "Save every so many epochs.")
    keep_last_n: Positive = setting(3, "Keep so many of the newest checkpoints.")
    best_metric: str = setting(
        "eval/greedy/reward",
        "The checkpoint in which this metric was highest, the latest among equals, is kept too.",
    )


@dataclass
class EnvironmentConfig(Section):
    """Which environment, and what it is given.

    An environment may read its settings as attributes or as from a dict: `config.max_steps`,
    `config.get("size", 4)`, `config["size"]`. What is not a field is looked up in `params`.
    """

    name: str = setting("guess-number", "A name (see `turnwise envs`) or path.py:Class.")
    max_steps: Positive | None = setting(None, "Most actions; none: the environment's own limit.")
    params: dict[str, Any] = setting({}, "The environment's own settings.")
    reward: str | None = setting(None, "The former place of the setting `reward`.")

    @classmethod
    def of(cls, config: EnvironmentConfig | Mapping[str, Any] | None) -> EnvironmentConfig:
        """From whatever an environment is given: a config, a plain dict, or nothing."""
        if config is None:
            return cls()
        if isinstance(config, EnvironmentConfig):
            return config
        if not isinstance(config, Mapping):
            raise ConfigError(
                f"an environment takes an EnvironmentConfig, a dict or None, "
                f"got {type(config).__name__}"
            )
        fields = {f.name for f in dataclasses.fields(cls)} - {"params"}
        own = {key: value for key, value in config.items() if key in fields}
        params = {key: value for key, value in config.items() if key not in {*fields, "params"}}
        return cls(**own, params={**config.get("params", {}), **params})

    def get(self, key: str, default: Any = None) -> Any:
        """A setting by name, as from a dict; a field that is None counts as not given."""
        if key in self.params:
            return self.params[key]
        value = getattr(self, key, None)
        return default if value is None else value

    def __getitem__(self, key: str) -> Any:
        if key in self:
            return self.params[key] if key in self.params else getattr(self, key)
        raise KeyError(f"environment has no setting {key!r}. {did_you_mean(key, self.params)}")

    def __contains__(self, key: object) -> bool:
        return key in self.params or key in {f.name for f in dataclasses.fields(self)}


@dataclass
class DatasetConfig(Section):
    """Rows of a dataset: prompts, or the tasks of an environment."""

    path: str | list[str] | None = setting(
        None, "Files of the kind .jsonl, .json or .parquet, or a folder that holds the splits."
    )
    split: str | None = setting(None, "Which split of a folder, for example train.")
    prompt_key: str = setting("prompt", "The column that holds the prompt, without environment.")
    columns: dict[str, str] = setting({}, "New names of columns: {new name: name in the file}.")
    max_rows: Positive | None = setting(None, "Use only the first rows; null: all of them.")

    @property
    def paths(self) -> list[str]:
        """The files; none where none is named."""
        if self.path is None:
            return []
        return [self.path] if isinstance(self.path, str) else self.path


@dataclass
class LimitsConfig(Section):
    """Limits and deadlines of one episode; null: no limit."""

    max_turns: Positive | None = setting(None, "Turns of an episode; null: inference.max_turns.")
    max_tokens_per_turn: Positive | None = setting(
        None, "Tokens of one turn; null: inference.max_tokens."
    )
    max_tokens: Positive | None = setting(
        None, "Tokens of the whole conversation, observations included; null: the model's context."
    )
    max_tool_calls: Annotated[int, Ge(0)] | None = setting(100, "Tool calls in an episode.")
    max_seconds: Seconds | None = setting(1800.0, "Duration of an episode.")
    max_observation: Positive | None = setting(50_000, "Characters of one observation.")
    reset_timeout: Seconds | None = setting(120.0, "Seconds to make and reset an environment.")
    step_timeout: Seconds | None = setting(60.0, "Seconds for one step.")
    tool_timeout: Seconds | None = setting(600.0, "Seconds for one tool call.")
    generation_timeout: Seconds | None = setting(600.0, "Seconds for one turn of the model.")
    reward_timeout: Seconds | None = setting(60.0, "Seconds for the reward function.")
    close_timeout: Seconds | None = setting(10.0, "Seconds to close an environment.")


@dataclass
class RewardItem(Section):
    """One function of a weighted reward."""

    function: str | None = setting(None, "path.py:function; null: the sum of the step rewards.")
    weight: float = setting(1.0, "Its weight in the sum.")
    name: str | None = setting(None, "Its name in the metrics; null: the function's.")


@dataclass
class EnvironmentItem(Section):
    """One environment of a mix: its share of the groups, and what it has of its own."""

    environment: str = field(metadata={"help": "A name (see `turnwise envs`) or path.py:Class."})
    weight: Annotated[float, Gt(0)] = setting(1.0, "Its share of the groups, relative to others.")
    name: str | None = setting(None, "Its name in the metrics; null: the environment's.")
    max_steps: Positive | None = setting(None, "Most actions; null: the environment's own limit.")
    params: dict[str, Any] = setting({}, "The environment's own settings.")
    dataset: DatasetConfig = field(
        default_factory=DatasetConfig, metadata={"help": "The rows that are its tasks."}
    )
    eval_dataset: DatasetConfig = field(
        default_factory=DatasetConfig, metadata={"help": "The rows that it is evaluated on."}
    )
    reward: str | list[RewardItem] | None = setting(None, "Its reward; null: the run's.")
    tools: list[str | dict[str, Any]] | None = setting(None, "Its tools; null: the run's.")
    system_prompt: str | None = setting(None, "Its system prompt; null: the run's.")

    def settings_in(self, run: ConfigStore) -> ConfigStore:
        """The settings of a run in which this environment is the only one."""
        return dataclasses.replace(
            run,
            environments=None,
            environment=EnvironmentConfig(self.environment, self.max_steps, self.params),
            dataset=self.dataset,
            eval_dataset=self.eval_dataset,
            reward=run.reward if self.reward is None else self.reward,
            tools=run.tools if self.tools is None else self.tools,
            system_prompt=run.system_prompt if self.system_prompt is None else self.system_prompt,
        )


@dataclass
class RayConfig(Section):
    """Running on a Ray cluster."""

    use_ray: bool = setting(False, "Run episodes and learners as Ray actors.")
    num_actors: Positive = setting(1, "Workers that play episodes.")
    num_learners: Positive = setting(1, "Workers that share each update.")
    gpus_per_worker: Annotated[float, Ge(0)] = setting(
        0.0, "GPUs of each worker; a half lets two share one."
    )
    address: str | None = setting(
        None, "The cluster, auto or host:port of its head; none: one is started, then stopped."
    )
    mode: Literal["sync", "one_step_off"] = setting(
        "sync", "one_step_off: the next episodes are played while an update is computed."
    )
    max_failures: Annotated[int, Ge(0)] = setting(
        3, "Lost workers that are replaced within one step; one more ends the run."
    )


@dataclass
class LoggingConfig(Section):
    """What a run tells."""

    level: Literal["debug", "info", "warning", "error"] = setting("info", "How much is logged.")
    sinks: list[str] = setting([], "Also send metrics to: tensorboard, wandb, mlflow, trackio.")
    episodes_gb: Annotated[float, Ge(0)] = setting(
        2.0, "Disk for the episodes of a run; when it is full, no more are kept."
    )


@dataclass
class ConfigStore(Section):
    """Every setting of a run. As it stands it trains the tiny model on a CPU, offline."""

    model: ModelConfig = field(default_factory=ModelConfig)
    inference: InferenceConfig = field(default_factory=InferenceConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    environments: list[EnvironmentItem] | None = setting(
        None,
        "A mix, instead of `environment`: a list of {environment, weight, name, max_steps, params, "
        "dataset, eval_dataset, reward, tools, system_prompt}.",
    )
    reward: str | list[RewardItem] | None = setting(
        None,
        "path.py:function, or a list of {function, weight}; null: the sum of the step rewards.",
    )
    tools: list[str | dict[str, Any]] = setting(
        [],
        "Tools of the agent: calculator, python, path.py:name, {mcp: command or URL}; "
        "{tool: name, option: value} sets options.",
    )
    parser: str = setting("auto", "How tool calls are written; auto: as the chat template has it.")
    system_prompt: str | None = setting(None, "Put before the environment's own system prompt.")
    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    eval_dataset: DatasetConfig = field(default_factory=DatasetConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    ray: RayConfig = field(default_factory=RayConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)

    def validate(self) -> Self:
        """Check every value, turn near misses into the right type ("3e-5"), return self."""
        checked = _checked(dataclasses.asdict(self), source="config")
        for section in dataclasses.fields(checked):
            setattr(self, section.name, getattr(checked, section.name))
        return self

    @classmethod
    def of(cls, config: Any) -> ConfigStore:
        """Return checked settings from whatever a trainer is given: settings, nested dicts such as
        `{"training": {"batch_size": 8}}`, a YAML file, or nothing."""
        if config is None:
            return cls()
        if isinstance(config, ConfigStore):
            return config.validate()
        if isinstance(config, Mapping):
            return _checked(dict(config), source="config")
        if isinstance(config, str | Path):
            return cls.load(config)
        got: str = config.__name__ if isinstance(config, type) else type(config).__name__
        raise ConfigError(
            f"config got {got}, expected a ConfigStore, a dict of sections, or the path of a YAML "
            "file. Settings come first, then the environment: Trainer(config, MyEnvironment)."
        )

    @classmethod
    def load(cls, path: str | Path | None = None, overrides: Iterable[str] = ()) -> ConfigStore:
        """Read a YAML file (none: the defaults), then apply `section.name=value` overrides."""
        data = read_yaml(Path(path)) if path is not None else {}
        given = {_apply_override(data, override): override for override in overrides}
        config = _checked(data, str(path) if path is not None else "config", given)
        if path is not None:
            _find_own_files(config, Path(path).absolute().parent)
        return config

    @classmethod
    def from_args(cls, argv: Sequence[str] | None = None) -> ConfigStore:
        """The settings that a script's command line asks for.

        `main.py --config-path=config --config-name=test training.batch_size=8`
        """
        parser = argparse.ArgumentParser(description="turnwise settings")
        parser.add_argument("--config-path", metavar="DIR", help="folder of the YAML file")
        parser.add_argument("--config-name", metavar="NAME", help="its name, with or without .yaml")
        parser.add_argument("overrides", nargs="*", metavar="section.name=value")
        args = parser.parse_args(argv)
        return cls.load(find_config(args.config_path, args.config_name), args.overrides)

    def save(self, path: str | Path) -> None:
        """Write a YAML file with each setting's help beside it; the file is whole or not there."""
        path = Path(path)
        content = self.to_yaml().encode()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)

    def to_yaml(self) -> str:
        """The settings as YAML, each under its line of help."""
        self.validate()
        lines: list[str] = []
        for section in dataclasses.fields(self):
            if self.environments is not None and section.name in _OF_ONE_ENVIRONMENT:
                continue
            values = getattr(self, section.name)
            if "help" in section.metadata:  # a setting of its own
                lines += [*_yaml_lines(section, values), ""]
                continue
            lines += [f"# {(type(values).__doc__ or '').splitlines()[0]}", f"{section.name}:"]
            for item in dataclasses.fields(values):
                shown = _yaml_lines(item, getattr(values, item.name))
                lines += [f"  {line}" if line else "" for line in shown]
            lines.append("")
        return "\n".join(lines)

    def parts(self) -> dict[str, ConfigStore]:
        """The settings of each environment of a mix, as if it were the only one, by its name.

        Without a mix they are the settings themselves, under the empty name.
        """
        if self.environments is None:
            return {"": self}
        names = part_names(self.environments)
        items = zip(names, self.environments, strict=True)
        return {name: item.settings_in(self) for name, item in items}

    def datasets(self) -> Iterator[tuple[str, DatasetConfig]]:
        """Each dataset of the run with a name, `eval_dataset` or `dataset-maze` of a mix."""
        owners: list[tuple[str, ConfigStore | EnvironmentItem]] = [("", self)]
        if self.environments is not None:
            names = [re.sub(r"[^\w.]+", "-", name) for name in part_names(self.environments)]
            owners += zip((f"-{name}" for name in names), self.environments, strict=True)
        for ending, owner in owners:
            yield f"dataset{ending}", owner.dataset
            yield f"eval_dataset{ending}", owner.eval_dataset

    @property
    def environment_name(self) -> str:
        """What the run plays: the name of its environment, or the names of a mix."""
        if self.environments is None:
            return self.environment.name
        names = part_names(self.environments)
        if len(names) > _MOST_NAMES:  # the run's folder is named after them
            names[_MOST_NAMES - 1 :] = [f"{len(names) - _MOST_NAMES + 1}-more"]
        return "+".join(names)

    def settings(self) -> Iterator[tuple[str, Any]]:
        """Every setting by its dotted name, `training.gamma` or `parser`, with its value."""
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if "help" in item.metadata:
                yield item.name, value
            else:
                yield from (
                    (f"{item.name}.{inner.name}", getattr(value, inner.name))
                    for inner in dataclasses.fields(value)
                )


def setting_types() -> dict[str, tuple[str, Any]]:
    """Every setting by its dotted name: its line of help, and its type."""
    found: dict[str, tuple[str, Any]] = {}
    kinds = typing.get_type_hints(ConfigStore)
    for item in dataclasses.fields(ConfigStore):
        kind = kinds[item.name]
        if "help" in item.metadata:
            found[item.name] = (item.metadata["help"], kind)
            continue
        hints = typing.get_type_hints(kind)
        for inner in dataclasses.fields(kind):
            found[f"{item.name}.{inner.name}"] = (inner.metadata["help"], hints[inner.name])
    return found


def _yaml_lines(item: dataclasses.Field[Any], value: Any) -> list[str]:
    """One setting under its line of help."""
    if isinstance(value, list):
        value = [_plain(entry) for entry in value]
    return [f"# {item.metadata['help']}", *dump({item.name: value}).rstrip("\n").split("\n")]


def _plain(entry: Any) -> Any:
    """An entry of a list for YAML; of an environment, what is not as usual."""
    if isinstance(entry, EnvironmentItem | DatasetConfig):
        kept = {f.name: getattr(entry, f.name) for f in dataclasses.fields(entry)}
        usual = dataclasses.asdict(DatasetConfig() if isinstance(entry, DatasetConfig) else _USUAL)
        plain = {name: _plain(value) for name, value in kept.items()}
        return {
            name: value
            for name, value in plain.items()
            if value != usual[name] and not (name.endswith("dataset") and not value)
        }
    if isinstance(entry, list):
        return [_plain(inner) for inner in entry]
    return dataclasses.asdict(entry) if dataclasses.is_dataclass(entry) else entry  # type: ignore[arg-type]


_USUAL = EnvironmentItem("")
_OF_ONE_ENVIRONMENT = ("environment", "dataset", "eval_dataset")
"""Sections that a run with a mix does not have: each part has its own."""
_PART_NAME = re.compile(r"[\w.-]+")
_MOST_NAMES = 4
_METRICS_OF_RUNS = frozenset(
    {"eval", "time", "greedy", "sampled", "reward", "truncated", "errors", "tool_calls"}
)
"""Words that stand before a slash in the metrics already."""


def part_names(items: Sequence[EnvironmentItem]) -> list[str]:
    """The name of each environment of a mix; `Maze` of `games.py:Maze`, a second one `Maze-2`.

    >>> part_names([EnvironmentItem("games.py:Maze"), EnvironmentItem("games.py:Maze")])
    ['Maze', 'Maze-2']
    """
    taken = [item.name for item in items if item.name is not None]
    names: list[str] = []
    for item in items:
        if item.name is not None:
            names.append(item.name)
            continue
        stem = re.sub(r"[^\w.-]+", "-", item.environment.rpartition(":")[2]).strip("-.") or "part"
        numbered = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
        names.append(next(name for name in numbered if name not in {*taken, *names}))
    return names


_SINGLE = frozenset(f.name for f in dataclasses.fields(ConfigStore) if "help" in f.metadata)
"""Settings that belong to no section."""
_SHORT = ("dataset", "eval_dataset")
"""Sections that may be written as their path alone."""


def find_config(folder: str | Path | None, name: str | None) -> Path | None:
    """The file that `--config-path` and `--config-name` mean; None if neither is given."""
    if folder is None and name is None:
        return None
    path = Path(folder or ".") / (name or "config")
    return path if path.suffix in {".yaml", ".yml"} else path.with_name(path.name + ".yaml")


def _find_own_files(config: ConfigStore, folder: Path) -> None:
    """Put the run's folder where `<run>` stands; the settings may be those of a checkpoint."""
    run = folder.parent.parent if folder.parent.name == "checkpoints" else folder
    for _, dataset in config.datasets():
        if any(path.startswith(RUN) for path in dataset.paths):
            dataset.path = [path.replace(RUN, str(run), 1) for path in dataset.paths]


def _apply_override(data: dict[str, Any], override: str) -> str:
    """Put one `section.name=value` into the nested mapping; the name that it sets."""
    key, equals, raw = override.partition("=")
    path = key.strip().lstrip("+").split(".")
    may_be_alone = path[0] in {*_SINGLE, *_SHORT}
    if not equals or not all(path) or (len(path) == 1 and not may_be_alone):
        inside = [full for full in setting_types() if full.endswith(f".{key.strip()}")]
        example = f"{inside[0]}={raw}" if inside else "training.learning_rate=3e-5"
        raise ConfigError(
            f"cannot read the override {override!r}. Write section.name=value, "
            f"for example {example}"
        )
    value = parse_value(raw)
    if value is not None and not isinstance(value, str) and _takes_text(path):
        value = raw  # model.model_name=123 names a model
    place = data
    if path[0] == "environments" and len(path) > 1:
        place, path = _item_of(data, path, override)
    for part in path[:-1]:
        inner = place.get(part)
        if inner is None:
            inner = place[part] = {}
        if not isinstance(inner, dict):
            raise ConfigError(f"cannot apply {override!r}: {part!r} is a value, not a section")
        place = inner
    place[path[-1]] = value
    return key.strip().lstrip("+")


def _item_of(
    data: dict[str, Any], path: list[str], override: str
) -> tuple[dict[str, Any], list[str]]:
    """The environment of a mix that `environments.0.weight` means, and what of it."""
    items = data.get("environments")
    number = len(items) if isinstance(items, list) else 0
    if len(path) < 3 or not path[1].isdecimal() or int(path[1]) >= number:
        raise ConfigError(
            f"cannot apply {override!r}: the file has {number} environments. Write the number of "
            "one, counted from 0, and its setting: environments.0.weight=2"
        )
    assert isinstance(items, list)
    found = items[int(path[1])] = _item_data(items[int(path[1])])
    return found, path[2:]


def _takes_text(path: list[str]) -> bool:
    hint = setting_types().get(".".join(path), ("", None))[1]
    is_union = typing.get_origin(hint) in (types.UnionType, typing.Union)
    return hint is str or (is_union and str in typing.get_args(hint))


@cache
def _adapter() -> Any:
    # Imported here: pydantic costs more than all the rest of this module, and only checks need it.
    from pydantic import TypeAdapter

    return TypeAdapter(ConfigStore)


def _checked(
    data: dict[str, Any], source: str, overrides: Mapping[str, str] | None = None
) -> ConfigStore:
    """A `ConfigStore` from nested mappings, or one error that names every problem and its place:
    an override, or a line of the file."""
    from pydantic import ValidationError

    data = {name: _section_data(name, section) for name, section in data.items()}
    try:
        store: ConfigStore = _adapter().validate_python(data)
    except ValidationError as error:
        problems = [
            f"{_place(problem['loc'], source, overrides or {})}: {_explain(problem, data)}"
            for problem in error.errors()
        ]
        raise ConfigError("\n".join(dict.fromkeys(problems))) from None
    if store.environments is not None:
        _check_mix(store, store.environments, data, source)
    return store


def _place(where: Sequence[Any], source: str, overrides: Mapping[str, str]) -> str:
    """Who is to blame for a bad value."""
    for depth in (2, 1):
        name = ".".join(map(str, where[:depth]))
        if name in overrides:
            return f"override {overrides[name]}"
    line = None if source == "config" else line_of(Path(source), [str(part) for part in where])
    return source if line is None else f"{source}, line {line}"


def _check_mix(
    store: ConfigStore, items: list[EnvironmentItem], data: Mapping[str, Any], source: str
) -> None:
    """A mix of at least one, each with a name of its own, and nothing that only one can have."""

    def refuse(problem: str) -> NoReturn:
        raise ConfigError(f"{source}: {problem}")

    if not items:
        refuse("environments got an empty list, expected at least one environment")
    if data.get("environment", {}) not in ({}, dataclasses.asdict(EnvironmentConfig())):
        refuse(
            "environment and environments are both given. Keep one of them: a run is played in one "
            "environment, or in a mix."
        )
    for name in ("dataset", "eval_dataset"):
        if getattr(store, name) != DatasetConfig():
            refuse(
                f"{name} and environments are both given, and rows are tasks of one environment. "
                f"Write {name} into the part of the mix that plays them."
            )
    for item, name in zip(items, part_names(items), strict=True):
        item.name = name
        if not _PART_NAME.fullmatch(name) or name in _METRICS_OF_RUNS:
            refuse(
                f"environments: the name {name!r} cannot stand in the metrics, which have names "
                "such as 'maze/reward'. Give this environment another one of letters, digits, dots "
                "and dashes: {environment: ..., name: ...}"
            )
    names = [item.name for item in items]
    if twice := next((name for name in names if names.count(name) > 1), None):
        refuse(f"environments: two parts have the name {twice!r}. Give each one of its own.")


def _section_data(name: str, value: Any) -> Any:
    """What a YAML file says of a section: nothing, or a short form of it."""
    if name in _SHORT and isinstance(value, str | list):
        return {"path": value}
    if name == "environments" and isinstance(value, list):
        return [_item_data(item) for item in value]
    return {} if value is None and name not in _SINGLE else value


def _item_data(item: Any) -> Any:
    """An environment of a mix in full: it may be written as its name alone, its rows as a path."""
    if isinstance(item, str):
        return {"environment": item}
    if not isinstance(item, dict):
        return item
    rows = {name: _section_data(name, item[name]) for name in _SHORT if name in item}
    return {**item, **rows}


def _explain(problem: Any, data: Mapping[str, Any]) -> str:
    """One line about one bad value: the field, what it got, what it takes."""
    where = [str(part) for part in problem["loc"]]
    name = ".".join(where[:2])
    if where[0] == "environments" and len(where) > 2:
        return _explain_item(problem)
    if where[0] in _SINGLE:  # a union has a problem for each of its types: the help says it better
        help_line = setting_types()[where[0]][0]
        return f"{where[0]} got {data[where[0]]!r}. Expected: {help_line}"
    if problem["type"] in {"unexpected_keyword_argument", "extra_forbidden"}:
        owner: Any = ConfigStore if len(where) == 1 else _section_class(where[0])
        known = [f.name for f in dataclasses.fields(owner)]
        kind = "section" if len(where) == 1 else "setting"
        inside = [full for full in setting_types() if full.endswith(f".{name}")]
        near = f"Did you mean {inside[0]!r}?" if inside else did_you_mean(where[-1], known)
        return f"there is no {kind} {name!r}. {near}"
    return f"{name} got {problem['input']!r:.200}. {problem['msg']}."


def _explain_item(problem: Any) -> str:
    """One line about an environment of a mix."""
    _, index, setting_name, *rest = (str(part) for part in problem["loc"])
    where = f"environments[{index}].{setting_name}"
    known = {f.name: f.metadata["help"] for f in dataclasses.fields(EnvironmentItem)}
    if setting_name not in known:
        return f"there is no setting {where!r}. {did_you_mean(setting_name, known)}"
    if problem["type"] in {"missing", "missing_argument"}:
        return f"{where} is missing. Expected: {known[setting_name]}"
    if rest and setting_name in _SHORT:
        return f"{where}.{rest[0]} got {problem['input']!r:.200}. {problem['msg']}."
    if rest:  # a union has a problem for each of its types: the help says it better
        return f"{where} got a value of another kind. Expected: {known[setting_name]}"
    return f"{where} got {problem['input']!r:.200}. {problem['msg']}."


def _section_class(name: str) -> Any:
    return typing.get_type_hints(ConfigStore)[name]
