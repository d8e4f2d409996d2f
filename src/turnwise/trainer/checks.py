"""What cannot be trained with is refused before a model is loaded or a folder is created."""

import inspect
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from turnwise.config import CheckpointConfig, ConfigStore, TrainingConfig
from turnwise.env import PromptEnvironment
from turnwise.env.catalog import PROMPTS
from turnwise.env.prompts import read_answer
from turnwise.episode import EpisodeResult
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

_NUM_ROWS_CHECKED = 100


def check_run(config: ConfigStore, user: UserComponents) -> None:
    """Raise for settings and components that a run cannot be made of."""
    check_settings(config)
    for part in user.parts(config):
        _check_components(part.components)
    inference = config.inference
    # A server gets prompts and weights; options of vLLM and SGLang name folders and code. So a
    # folder that the user does not trust may not name them.
    if inference.url is not None:
        require_use(server_use(inference.url))
    if inference.options and not engine_class(inference.backend).shares_model:
        options = json.dumps(inference.options, sort_keys=True, default=repr)
        require_use(f"the engine {inference.backend} with {options}")
    group_size(config, user.algorithm(config).estimator)
    name = config.checkpoint.best_metric
    parts = ["", *(f"{part}/" for part in config.parts() if part)]
    prefixes = [*parts, *(f"eval/{p}{way}/" for p in parts for way in ("greedy", "sampled"))]
    kinds = ("reward", "success", "turns", "truncated", "errors")
    known = {"step", *(f"{prefix}{kind}" for prefix in prefixes for kind in kinds)}
    if name not in known and "reward/" not in name:  # a component of the reward
        raise ConfigError(
            f"checkpoint.best_metric got {name!r}, which is no metric. {did_you_mean(name, known)}"
        )
    is_default = name == CheckpointConfig().best_metric
    if name.startswith("eval/") and not is_default and not config.training.eval_episodes:
        raise ConfigError(
            f"checkpoint.best_metric got {name!r}, and training.eval_episodes is 0: there are no "
            "evaluations. Set training.eval_episodes, for example to 64."
        )


def check_settings(config: ConfigStore) -> None:
    """Raise for settings that contradict each other."""
    inference, training, model = config.inference, config.training, config.model
    backend, url, num_split = inference.backend, inference.url, model.tensor_parallel_size
    is_shared = engine_class(backend).shares_model
    is_file = Path(str(training.warm_start)).is_file()
    plays_elsewhere = config.ray.use_ray or not is_shared
    changes_kl_coef = training.kl_coef != TrainingConfig().kl_coef
    trains_others = any(item.trains for item in config.policies.values())
    for is_refused, why in (
        (
            is_shared and (num_split > 1 or url is not None),
            f"model.tensor_parallel_size got {num_split} and inference.url {url!r}, and the "
            f"{backend} engine runs in this process on one device. Set inference.backend to vllm "
            "or sglang, or leave both out.",
        ),
        (
            url is not None and config.ray.use_ray and config.ray.num_actors > 1,
            f"ray.num_actors got {config.ray.num_actors}, and one server takes new weights from "
            "one worker. Set it to 1, or remove inference.url: each worker then starts an engine.",
        ),
        (
            model.load_in_4bit and (plays_elsewhere or not training.lora_rank),
            "model.load_in_4bit got true: adapters are trained (QLoRA), in this process. Set "
            "training.lora_rank (16), ray.use_ray to false and inference.backend to local.",
        ),
        (
            backend == "scripted",
            "inference.backend got 'scripted', which has no model to train. It is for trying "
            "environments: EpisodeCollector(ScriptedEngine(...), environment).",
        ),
        (
            inference.temperature == 0,
            "inference.temperature got 0: a greedy policy explores nothing. Set it to 1.0.",
        ),
        (
            (
                bool(config.policies)
                and (plays_elsewhere or training.max_staleness > 0 or config.agent is not None)
            )
            or (trains_others and training.warm_start is not None),
            "policies got models of players, which only runs of an environment in this process "
            "have. Set ray.use_ray to false, inference.backend to local or transformers, "
            "training.max_staleness to 0; and training.warm_start to null if players learn.",
        ),
        (
            not training.use_kl_in_reward
            and (training.kl_target is not None or (changes_kl_coef and not training.kl_loss_coef)),
            f"training.kl_target got {training.kl_target} and training.kl_coef {training.kl_coef}, "
            "and there is no KL penalty in the reward. Set training.use_kl_in_reward to true, or "
            "training.kl_loss_coef alone for a KL term in the loss.",
        ),
        (
            training.max_staleness > 0 and training.resample > 0,
            f"training.resample got {training.resample} with training.max_staleness "
            f"{training.max_staleness}, and only synchronous steps replace groups. Set one of the "
            "two to 0.",
        ),
        (
            training.max_staleness > 0 and bool(inference.options.get("sleep")),
            f"inference.options.sleep got true with training.max_staleness "
            f"{training.max_staleness}: episodes are played during updates, so the engine cannot "
            "sleep in them. Set sleep to false, or max_staleness to 0.",
        ),
        (
            training.warm_start not in (None, "expert", "random") and not is_file,
            f"training.warm_start got {training.warm_start!r}, expected 'expert', 'random', or a "
            "JSONL file of conversations; there is no such file",
        ),
    ):
        if is_refused:
            raise ConfigError(why)


def _check_components(user: UserComponents) -> None:
    parser, tokenizer = user.parser, user.tokenizer
    is_parser = isinstance(parser, str) or _has(parser, "parse", "render")
    is_tokenizer = isinstance(tokenizer, str) or _has(tokenizer, "encode")
    for name, is_right, expected in (
        (
            "parser",
            is_parser,
            "a name such as 'hermes', or an object of a class derived from turnwise.ActionParser",
        ),
        ("system_prompt", isinstance(user.system_prompt, str), "a string"),
        (
            "model",
            isinstance(user.model, torch.nn.Module),
            "a loaded Hugging Face model, together with its tokenizer. To name a model, use the "
            "setting model.model_name, or model.local_path for a folder",
        ),
        ("tokenizer", is_tokenizer, "a Hugging Face tokenizer, or the name or folder of one"),
    ):
        value = getattr(user, name)
        if value is not None and not is_right:
            raise ConfigError(f"{name} got {value!r:.80}, expected {expected}.")
    has_batch_reward = user.reward_fn is not None and batch_type(user.reward_fn) is not None
    if user.reward_fn is not None and not has_batch_reward:
        RewardFunction(user.reward_fn)
    if has_batch_reward and user.agent is not None:
        raise ConfigError(
            "reward_fn takes a batch of token rows, and an agent's episode may have several "
            "conversations. Write a function of one trajectory: def reward(trajectory)."
        )
    if isinstance(user.parser, str) and user.parser != "auto":
        get_parser(user.parser)
    if user.environment in (PROMPTS, PromptEnvironment) and user.reward_fn is None:
        rows = user.train_rows or ()
        first = [rows[number] for number in range(min(len(rows), _NUM_ROWS_CHECKED))]
        if first and all(read_answer(row) is None for row in first):
            raise ConfigError(
                "the rows of the dataset have no 'answer', and there is no reward function: every "
                f"reply would earn 0. They have: {', '.join(map(str, first[0]))}. Name the column "
                "with dataset.columns: {answer: its name}, or set reward: file.py:function "
                "(Trainer(reward_fn=...))."
            )


def check_players(config: ConfigStore, episodes: Iterable[EpisodeResult]) -> None:
    """Raise for policies of players that no episode has."""
    players = {agent.name for episode in episodes for agent in episode.agents}
    for name in config.policies.keys() - players if players else ():
        hint = did_you_mean(name, players)
        raise ConfigError(f"policies got {name!r}, and the environment has no such player. {hint}")


def checked_callbacks(callbacks: Any) -> list[Any]:
    """Return the callbacks as a list; raise for what has none of the methods."""
    given = list(callbacks) if isinstance(callbacks, Iterable) else [callbacks]
    for callback in given:
        has_event = any(_has(callback, event) for event in CALLBACK_EVENTS)
        if not isinstance(callbacks, Iterable) or not has_event:
            raise ConfigError(
                f"callbacks got {callback!r:.80}, expected a list of objects with one of the "
                f"methods {', '.join(CALLBACK_EVENTS)}. For example: callbacks=[MyCallback()]."
            )
        for event in CALLBACK_EVENTS:
            if inspect.iscoroutinefunction(getattr(callback, event, None)):
                raise ConfigError(
                    f"callbacks got {callback!r:.80}, whose {event} is async, and fit() awaits "
                    f"none. Write def {event}(...) without async."
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
    is_object = not isinstance(value, type)
    return is_object and all(callable(getattr(value, name, None)) for name in methods)
