"""What cannot be trained with is refused before a model is loaded or a folder is created."""

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from turnwise.config import CheckpointConfig, ConfigStore, TrainingConfig
from turnwise.env import PromptEnvironment
from turnwise.env.catalog import PROMPTS
from turnwise.env.players import lacks_player
from turnwise.env.prompts import answer_of
from turnwise.episode import EpisodeLimits
from turnwise.errors import ConfigError, did_you_mean
from turnwise.inference import engine_class
from turnwise.reward import batch_type
from turnwise.reward.function import RewardFunction
from turnwise.runs.run_folder import Resume
from turnwise.tools import get_parser
from turnwise.trainer.components import UserComponents
from turnwise.trainer.reporter import CALLBACK_EVENTS
from turnwise.trainer.rollout import group_size
from turnwise.user_code import require_use, server_use

_LOG = logging.getLogger("turnwise")
_NUM_ROWS_CHECKED = 100
_MOST_EPISODES = 10**6
"""Of one step: a batch of more would fill the memory before the first episode ends."""


def check_run(config: ConfigStore, user: UserComponents) -> None:
    """Raise for settings and components that a run cannot be made of."""
    check_settings(config)
    for components in [user, *(part.components for part in user.mix)]:
        _check_types(components)
    inference = config.inference
    # A server gets prompts and weights; options of vLLM and SGLang name folders and code. So a
    # folder that the user does not trust may not name them.
    if inference.url is not None:
        require_use(server_use(inference.url))
    if inference.options and not engine_class(inference.backend).shares_model:
        options = json.dumps(inference.options, sort_keys=True, default=repr)
        require_use(f"the engine {inference.backend} with {options}")
    limits = user.limits or config.limits
    both = inference.max_turns, limits.max_turns
    if None not in both and both[0] != both[1]:
        raise ConfigError(
            f"inference.max_turns got {both[0]} and limits.max_turns got {both[1]}, and both limit "
            "the turns of an episode. Set one of them."
        )
    group_size(config, user.algorithm(config).estimator)
    _check_best_metric(config)
    for part in user.parts(config):
        _check_components(part.components, config)


def check_settings(config: ConfigStore) -> None:
    """Raise for settings that contradict each other."""
    inference, training, model = config.inference, config.training, config.model
    backend, url, num_split = inference.backend, inference.url, model.tensor_parallel_size
    is_shared = engine_class(backend).shares_model
    is_file = Path(str(training.warm_start)).is_file()
    refused_4bit = "Ray" if config.ray.use_ray else f"inference.backend {backend!r}"
    num_episodes = training.batch_size * (training.group_size or 1)
    for is_refused, why in (
        (
            num_episodes > _MOST_EPISODES,
            f"training.batch_size {training.batch_size:,} with training.group_size "
            f"{training.group_size or 1:,} are {num_episodes:,} episodes in one step, expected at "
            f"most {_MOST_EPISODES:,}.",
        ),
        (
            num_split > 1 and is_shared,
            f"model.tensor_parallel_size got {num_split}, and the {backend} engine runs on one "
            "device. Set it to 1, or inference.backend to vllm or sglang.",
        ),
        (
            url is not None and is_shared,
            f"inference.url got {url!r}, and the {backend} engine runs in this process. Set "
            "inference.backend to vllm or sglang, or remove the URL.",
        ),
        (
            url is not None and num_split > 1,
            f"model.tensor_parallel_size got {num_split}, and the number of GPUs of {url} was "
            "decided when that server was started. Leave it at 1.",
        ),
        (
            url is not None and config.ray.use_ray and config.ray.num_actors > 1,
            f"ray.num_actors got {config.ray.num_actors}, and one server takes new weights from "
            "one worker. Set it to 1, or remove inference.url: each worker then starts an engine.",
        ),
        (
            model.load_in_4bit and not training.lora_rank,
            "model.load_in_4bit got true, and 4-bit weights cannot be trained. Set "
            "training.lora_rank, for example to 16, to train adapters on them (QLoRA).",
        ),
        (
            model.load_in_4bit and (config.ray.use_ray or not is_shared),
            f"model.load_in_4bit got true, which {refused_4bit} does not support. Set it to false, "
            "or ray.use_ray to false and inference.backend to local.",
        ),
        (
            backend == "scripted",
            "inference.backend got 'scripted', which has no model to train. It is for trying "
            "environments: EpisodeCollector(ScriptedEngine(...), environment).",
        ),
        (
            inference.temperature == 0,
            "inference.temperature got 0: a greedy policy explores nothing and has no log-probs "
            "to learn from. Set it to 1.0.",
        ),
        (
            bool(config.policies) and (config.ray.use_ray or not is_shared),
            "policies got models of players, which only engines in this process play. Set "
            "ray.use_ray to false and inference.backend to local or transformers.",
        ),
        (
            bool(config.policies) and (training.max_staleness > 0 or config.agent is not None),
            "policies got models of players, which take turns in an environment and learn step by "
            "step. Set training.max_staleness to 0, and an environment, not an agent.",
        ),
        (
            any(item.trains for item in config.policies.values())
            and training.warm_start is not None,
            "policies got players that learn, and training.warm_start imitates with the run's own "
            "model alone. Set one of them to null.",
        ),
        (
            training.kl_target is not None and not training.use_kl_in_reward,
            f"training.kl_target got {training.kl_target}, and there is no KL penalty whose weight "
            "it would adapt. Set training.use_kl_in_reward to true, or kl_target to null.",
        ),
        (
            training.kl_coef != TrainingConfig().kl_coef
            and not training.use_kl_in_reward
            and not training.kl_loss_coef,
            f"training.kl_coef got {training.kl_coef}, and there is no KL penalty that it would "
            "weigh. Set training.use_kl_in_reward to true, or training.kl_loss_coef for a KL term "
            "in the loss.",
        ),
        (
            training.max_staleness and inference.options.get("sleep"),
            f"inference.options.sleep got true with training.max_staleness="
            f"{training.max_staleness}: episodes are played during updates, so the engine cannot "
            "sleep in them. Set one of the two to its default.",
        ),
        (
            training.warm_start not in (None, "expert", "random") and not is_file,
            f"training.warm_start got {training.warm_start!r}, expected 'expert', 'random', or a "
            "JSONL file of conversations; there is no such file",
        ),
    ):
        if is_refused:
            raise ConfigError(why)
    if config.logging.wandb and "wandb" not in config.logging.sinks:
        _LOG.warning("logging.wandb has settings, and logging.sinks has no wandb: none is sent")


def _check_best_metric(config: ConfigStore) -> None:
    name = config.checkpoint.best_metric
    prefixes = ["", *(f"{part}/" for part in config.parts() if part)]
    kinds = ("reward", "success", "turns", "truncated", "errors")
    of_step = {"step", *(f"{prefix}{kind}" for prefix in prefixes for kind in kinds)}
    of_evaluation = {
        f"eval/{prefix}{how}/{kind}"
        for prefix in prefixes
        for how in ("greedy", "sampled")
        for kind in kinds
    }
    if name not in of_step | of_evaluation and "reward/" not in name:  # a component of the reward
        raise ConfigError(
            f"checkpoint.best_metric got {name!r}, which is no metric. "
            f"{did_you_mean(name, of_step | of_evaluation)}"
        )
    is_default = name == CheckpointConfig().best_metric
    if name in of_evaluation and not is_default and not config.training.eval_episodes:
        raise ConfigError(
            f"checkpoint.best_metric got {name!r}, and training.eval_episodes is 0: there are no "
            "evaluations. Set training.eval_episodes, for example to 64."
        )


def _check_components(user: UserComponents, config: ConfigStore) -> None:
    """Raise for components that no episode of an environment can be played with."""
    training, source = config.training, user.environment
    has_batch_reward = user.reward_fn is not None and batch_type(user.reward_fn) is not None
    if user.reward_fn is not None and not has_batch_reward:
        RewardFunction.of(user.reward_fn)
    if has_batch_reward and user.agent is not None:
        raise ConfigError(
            "reward_fn takes a batch of token rows, and an agent's episode may have several "
            "conversations. Write a function of one trajectory: def reward(trajectory)."
        )
    if has_batch_reward and training.max_staleness and training.resample:
        raise ConfigError(
            f"training.resample got {training.resample} with training.max_staleness="
            f"{training.max_staleness}, and the reward function scores whole batches: whether a "
            "group has equal rewards is known too late. Set one of the two to 0, or write a "
            "reward function of one trajectory."
        )
    if isinstance(user.parser, str) and user.parser != "auto":
        get_parser(user.parser)
    # A function shows its player only when it is called: then the warm start raises.
    method = {"expert": "expert_action", "random": "sample_action"}.get(str(training.warm_start))
    if method and source is not None and lacks_player(source, str(training.warm_start)):
        raise ConfigError(
            f"training.warm_start got {training.warm_start!r}, and {user.environment_name} has no "
            f"method {method}. Write one, or set training.warm_start to null or to a file of "
            "conversations."
        )
    if user.environment in (PROMPTS, PromptEnvironment) and user.reward_fn is None:
        rows = user.train_rows or ()
        first = [rows[number] for number in range(min(len(rows), _NUM_ROWS_CHECKED))]
        if first and all(answer_of(row) is None for row in first):
            raise ConfigError(
                "the rows of the dataset have no 'answer', and there is no reward function: every "
                f"reply would earn 0. They have: {', '.join(map(str, first[0]))}. Name the column "
                "with dataset.columns: {answer: its name}, or set reward: file.py:function "
                "(Trainer(reward_fn=...))."
            )


def _check_types(user: UserComponents) -> None:
    """Raise for arguments of the trainer that are of another type."""
    is_right = {
        "parser": isinstance(user.parser, str) or _has(user.parser, "parse", "render"),
        "system_prompt": isinstance(user.system_prompt, str),
        "model": isinstance(user.model, torch.nn.Module),
        "tokenizer": isinstance(user.tokenizer, str) or _has(user.tokenizer, "encode"),
        "limits": isinstance(user.limits, EpisodeLimits),
    }
    expected = {
        "parser": "a name such as 'hermes', or an object of a class derived from "
        "turnwise.ActionParser",
        "system_prompt": "a string, which is put before the environment's own system prompt",
        "model": "a loaded Hugging Face model, together with its tokenizer. To name a model, use "
        "the setting model.model_name, or model.local_path for a folder",
        "tokenizer": "a Hugging Face tokenizer, or the name or folder of one",
        "limits": "turnwise.EpisodeLimits: limits=EpisodeLimits(max_turns=5)",
    }
    for name, text in expected.items():
        value = getattr(user, name)
        if value is not None and not is_right[name]:
            raise ConfigError(f"{name} got {value!r:.80}, expected {text}.")


def checked_callbacks(callbacks: Any) -> list[Any]:
    """Return the callbacks as a list; raise for what has none of the methods."""
    if not isinstance(callbacks, Iterable):
        name = type(callbacks).__name__
        raise ConfigError(f"callbacks got {name}, expected a list: callbacks=[{name}()]")
    given = list(callbacks)
    for callback in given:
        if isinstance(callback, type):
            name = callback.__name__
            raise ConfigError(f"callbacks got the class {name}, expected an object: {name}()")
        if not any(_has(callback, event) for event in CALLBACK_EVENTS):
            raise ConfigError(
                f"callbacks got {callback!r:.80}, expected an object with one of the methods "
                f"{', '.join(CALLBACK_EVENTS)}. For example: def on_step(self, trainer, metrics)."
            )
    return given


def resume_mode(resume: Resume | bool) -> Resume:
    """Return the mode for the argument `resume`, which may be a bool; raise for other values."""
    if isinstance(resume, bool):
        return "always" if resume else "never"
    if resume not in ("auto", "always", "never"):
        raise ConfigError(
            f"resume got {resume!r}, expected True to continue a run, False for a new one, or "
            "'auto': a run with the same settings that did not end is continued."
        )
    return resume


def _has(value: Any, *methods: str) -> bool:
    """Return whether this is an object, and no class, with these methods."""
    if isinstance(value, type):
        return False
    return all(callable(getattr(value, name, None)) for name in methods)
