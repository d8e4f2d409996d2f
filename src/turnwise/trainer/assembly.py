"""Builds the components of a run from the settings and the user's components."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from turnwise.config import CheckpointConfig, ConfigStore
from turnwise.env import BaseEnvironment, PromptEnvironment
from turnwise.env.catalog import PROMPTS, EnvironmentFactory, source_by_name
from turnwise.env.prompts import answer_of
from turnwise.episode import CollectorOptions, EpisodeCollector
from turnwise.episode.collector import EpisodeSource
from turnwise.errors import ConfigError, did_you_mean
from turnwise.inference import BaseInferenceEngine, create_inference_engine, engine_class
from turnwise.inference.base import StaleCache
from turnwise.learner import has_adapters, make_learner, merged_weights
from turnwise.learner.base import BaseLearner
from turnwise.models import model_folder
from turnwise.models.probing import rope_types, rotary_limit
from turnwise.models.weight_files import read_wide
from turnwise.reward import batch_type
from turnwise.trainer.batches import Advantages
from turnwise.trainer.components import EpisodeKind, UserComponents, check_components
from turnwise.trainer.rollout import group_size
from turnwise.user_code import require_model_code, require_use, server_use

_LOG = logging.getLogger("turnwise")
Collector = TypeVar("Collector", bound=EpisodeCollector)
_NUM_ROWS_CHECKED = 100


@dataclass
class RunComponents:
    """The model, learner, engine and collector of a run; on Ray, proxies of those in the workers.

    The trainer owns them and closes them in `cleanup`.
    """

    tokenizer: Any
    learner: BaseLearner
    engine: BaseInferenceEngine
    collector: EpisodeCollector
    advantages: Advantages
    shares_weights: bool
    """Whether the engine samples from the learner's modules, so that no weights are copied."""
    closing: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """Closes what ends with the run besides the engine: MCP servers, the agents' gateway."""
    watch: Callable[[Callable[[str], object]], object] | None = None
    """Calls a function with the reason when what the workers run on is lost."""

    def publish_weights(self) -> None:
        """Make the engine sample from the learner's current weights."""
        self.engine.update_weights(None if self.shares_weights else policy_weights(self.learner))

    @contextlib.contextmanager
    def updates_in_flight(self, stale_kv: StaleCache) -> Iterator[None]:
        """Let the engine take new weights while it samples, inside the block.

        If it samples from the learner's weights, it pauses from the first step of an update until
        they are published: weights between two optimiser steps have no version.
        """
        self.engine.in_flight = stale_kv
        if self.shares_weights:
            self.learner.before_step = self.engine.pause
        try:
            yield
        finally:
            self.learner.before_step = lambda: None
            if self.engine.is_paused:  # the update did not end
                self.publish_weights()
            self.engine.in_flight = None

    def close(self) -> None:
        with self.closing:
            self.engine.close()


def assemble(
    config: ConfigStore, user: UserComponents, total_steps: int | None = None
) -> RunComponents:
    """Build everything that a run needs in this process, in the order of the dependencies."""
    check_run(config, user)
    algorithm = user.algorithm(config)
    closing = contextlib.ExitStack()
    source = user.episode_source(config, closing)
    model, tokenizer = user.model_and_tokenizer(config)
    # The learner first: it may add adapters to the modules that the engine samples from.
    learner = make_learner(config, model, algorithm=algorithm, total_steps=total_steps)
    learner.options = dataclasses.replace(learner.options, horizon=user.horizon(config))
    engine = make_engine(config, model, tokenizer)
    learner.on_low_memory = engine.free_memory
    learner.model.merges_adapters = engine.merges_adapters
    options = user.episode_options(config, closing)
    kinds = user.mix_kinds(options, closing)
    collector = make_collector(EpisodeCollector, engine, source, options, kinds)
    is_exact = samples_exactly(config, learner)
    advantages = Advantages(
        config.training, learner, algorithm.estimator, sampler_is_exact=is_exact
    )
    shares = engine_class(config.inference.backend).shares_model
    components = RunComponents(
        tokenizer, learner, engine, collector, advantages, shares, closing=closing
    )
    if begins_with_other_weights(config, user, model):
        components.publish_weights()
    return components


def begins_with_other_weights(config: ConfigStore, user: UserComponents, model: Any) -> bool:
    """Whether an engine may have other weights than the learner before the first update.

    A server may have those of another run, vLLM and SGLang cannot load a user's own model, and
    they round the weights of float32 files to nearest.
    """
    if engine_class(config.inference.backend).shares_model:
        return False
    is_elsewhere = config.inference.url is not None or user.model is not None
    return is_elsewhere or bool(read_wide(model))


def make_collector(
    make: Callable[..., Collector],
    engine: BaseInferenceEngine,
    source: EnvironmentFactory | EpisodeSource,
    options: CollectorOptions,
    kinds: Mapping[str, EpisodeKind],
) -> Collector:
    """Return a collector for one environment or agent, or for the environments of a mix."""
    collectors: dict[str, EpisodeCollector] = {}
    chat: dict[str, Any] = {}  # one format for all: it depends on the tokenizer alone
    for name, kind in kinds.items():
        collectors[name] = EpisodeCollector(engine, kind.factory, kind.options, **chat)
        chat = {"chat_format": collectors[name].setup.chat}
    return make(engine, source, options, parts=collectors, **chat)


def samples_exactly(config: ConfigStore, learner: BaseLearner) -> bool:
    """Whether the engine's log-probs equal the learner's: in float32, from the same weights."""
    return (
        engine_class(config.inference.backend).shares_model
        and config.inference.top_p == 1.0
        and not config.training.max_staleness
        and learner.model.policy.dtype == torch.float32
    )


def make_engine(config: ConfigStore, model: Any, tokenizer: Any) -> BaseInferenceEngine:
    """Return the engine of the settings; only some backends use the model itself."""
    inference = config.inference
    if engine_class(inference.backend).shares_model:
        # In an asynchronous run the engine samples while the learner computes.
        defaults: dict[str, Any] = {}
        if inference.backend == "local":
            defaults["own_stream"] = config.training.max_staleness > 0
        return create_inference_engine(
            model, inference.backend, defaults | inference.options, tokenizer=tokenizer
        )
    path = config.model.local_path or config.model.model_name
    if config.model.trust_remote_code:
        require_model_code(path)
    options: dict[str, Any] = {
        "trust_remote_code": config.model.trust_remote_code,
        "start_timeout": inference.start_timeout,
    }
    if inference.url is not None:
        # The server's own path of the model may not exist on this machine.
        options["model_path"] = model_folder(path)
    else:
        options["dtype"] = config.model.dtype
        options["tensor_parallel_size"] = config.model.tensor_parallel_size
    options |= inference.options
    limit = None if model is None else rotary_limit(model.config)
    if limit is not None and inference.backend in ("vllm", "sglang"):
        # They compute longrope with other frequencies than the learner if longer texts are
        # possible, and dynamic ones with others at any length.
        if "dynamic" in rope_types(model.config):
            raise ConfigError(
                f"inference.backend got {inference.backend!r}, and {path} has rope_type 'dynamic', "
                "for which it takes other frequencies than the learner. Set it to 'local'."
            )
        if inference.url is None:
            options["max_model_len"] = min(options.get("max_model_len") or limit, limit)
    engine = create_inference_engine(
        inference.url or path, inference.backend, options, tokenizer=tokenizer
    )
    length = engine.context_length
    if limit is not None and inference.url is not None and length > limit:
        engine.close()
        raise ConfigError(
            f"the server at {inference.url} takes {length} tokens, expected at most {limit}: "
            f"beyond them {path} changes its rotary frequencies (rope_type longrope). Start it "
            f"with a maximum length of {limit}."
        )
    return engine


def check_run(config: ConfigStore, user: UserComponents) -> None:
    """Raise for what cannot be trained with, before a model is loaded or a folder created."""
    check_settings(config)
    _require_engine(config)
    check_components(user)
    check_resampling(config, user)
    _check_turn_limits(config, user)
    group_size(config, user.algorithm(config).estimator)
    _check_best_metric(config)
    for part in user.mix or (None,):
        components = user if part is None else part.components
        _check_players(config.training.warm_start, components)
        _check_answers(components)


def _check_best_metric(config: ConfigStore) -> None:
    name = config.checkpoint.best_metric
    parts = [part for part in config.parts() if part]
    kinds = ("reward", "success", "turns", "truncated", "errors")
    of_step = {"step", *kinds, *(f"{part}/{kind}" for part in parts for kind in kinds)}
    of_evaluation = {
        f"eval/{part}{how}/{kind}"
        for part in ("", *(f"{part}/" for part in parts))
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


def _check_players(warm_start: str | None, user: UserComponents) -> None:
    """Raise if an environment lacks the player that the warm start imitates.

    A function shows it only when it is called: then the first step of the warm start raises.
    """
    methods = {"expert": "expert_action", "random": "sample_action"}
    source = user.environment
    if warm_start not in methods or source is None:
        return
    source = source_by_name(source) if isinstance(source, str) else source
    kind = type(source) if isinstance(source, BaseEnvironment) else source
    method = methods[warm_start]
    if getattr(kind, method, None) is getattr(BaseEnvironment, method):
        raise ConfigError(
            f"training.warm_start got {warm_start!r}, and {user.environment_name} has no method "
            f"{method}. Write one, or set training.warm_start to null or to a file of "
            "conversations."
        )


def _check_answers(user: UserComponents) -> None:
    """Raise for prompts whose every reply would earn 0."""
    if user.environment not in (PROMPTS, PromptEnvironment) or user.reward_fn is not None:
        return
    rows = user.train_rows or ()
    first = [rows[number] for number in range(min(len(rows), _NUM_ROWS_CHECKED))]
    if first and all(answer_of(row) is None for row in first):
        raise ConfigError(
            "the rows of the dataset have no 'answer', and there is no reward function: every "
            f"reply would earn 0. They have: {', '.join(map(str, first[0]))}. Name the column with "
            "dataset.columns: {answer: its name}, or set reward: file.py:function "
            "(Trainer(reward_fn=...))."
        )


def _require_engine(config: ConfigStore) -> None:
    """Refuse a server or engine options that a folder names which the user does not trust.

    A server gets prompts and weights; options of vLLM and SGLang name folders and code.
    """
    inference = config.inference
    if inference.url is not None:
        require_use(server_use(inference.url))
    if inference.options and not engine_class(inference.backend).shares_model:
        options = json.dumps(inference.options, sort_keys=True, default=repr)
        require_use(f"the engine {inference.backend} with {options}")


def _check_turn_limits(config: ConfigStore, user: UserComponents) -> None:
    limits = user.limits or config.limits
    of_inference, of_limits = config.inference.max_turns, limits.max_turns
    if None not in (of_inference, of_limits) and of_inference != of_limits:
        raise ConfigError(
            f"inference.max_turns got {of_inference} and limits.max_turns got {of_limits}, and "
            "both limit the turns of an episode. Set one of them."
        )


def check_settings(config: ConfigStore) -> None:
    """Raise for settings that cannot be trained with, before a model is loaded."""
    num_split = config.model.tensor_parallel_size
    if num_split > 1 and engine_class(config.inference.backend).shares_model:
        raise ConfigError(
            f"model.tensor_parallel_size got {num_split}, and the {config.inference.backend} "
            "engine runs on one device, on the modules that are trained. Set it to 1, or "
            "inference.backend to vllm or sglang."
        )
    if config.inference.url is not None:
        _check_url(config)
    if config.model.load_in_4bit:
        _check_4bit(config)
    if config.inference.backend == "scripted":
        raise ConfigError(
            "inference.backend got 'scripted', which has no model to train. It is for trying "
            "environments: EpisodeCollector(ScriptedEngine(...), environment)."
        )
    if config.inference.temperature == 0:
        raise ConfigError(
            "inference.temperature got 0: a greedy policy explores nothing and has no log-probs "
            "to learn from. Set it to 1.0."
        )

    training = config.training
    if training.kl_target is not None and not training.use_kl_in_reward:
        raise ConfigError(
            f"training.kl_target got {training.kl_target}, and there is no KL penalty whose weight "
            "it would adapt. Set training.use_kl_in_reward to true, or kl_target to null"
            + (": kl_loss_coef stays as it is." if training.kl_loss_coef else ".")
        )
    if config.training.max_staleness and config.inference.options.get("sleep"):
        raise ConfigError(
            f"inference.options.sleep got true with training.max_staleness="
            f"{config.training.max_staleness}: episodes are played during updates, so the engine "
            "cannot sleep in them. Set one of the two to its default."
        )
    warm_start = config.training.warm_start
    if warm_start not in (None, "expert", "random") and not Path(str(warm_start)).is_file():
        raise ConfigError(
            f"training.warm_start got {warm_start!r}, expected 'expert', 'random', or a JSONL file "
            "of conversations; there is no such file"
        )


def _check_url(config: ConfigStore) -> None:
    """Raise for settings that a server which runs already cannot follow."""
    inference, num_split = config.inference, config.model.tensor_parallel_size
    if engine_class(inference.backend).shares_model:
        raise ConfigError(
            f"inference.url got {inference.url!r}, and the {inference.backend} engine runs in this "
            "process. Set inference.backend to vllm or sglang, or remove the URL."
        )
    if num_split > 1:
        raise ConfigError(
            f"model.tensor_parallel_size got {num_split}, and the number of GPUs of "
            f"{inference.url} was decided when that server was started. Leave it at 1."
        )
    if config.ray.use_ray and config.ray.num_actors > 1:
        raise ConfigError(
            f"ray.num_actors got {config.ray.num_actors}, and one server takes new weights from "
            "one worker. Set it to 1, or remove inference.url: each worker then starts an engine."
        )


def _check_4bit(config: ConfigStore) -> None:
    if not config.training.lora_rank:
        raise ConfigError(
            "model.load_in_4bit got true, and 4-bit weights cannot be trained: training.lora_rank "
            "is 0. Set training.lora_rank, for example to 16, to train adapters on them (QLoRA)."
        )
    backend = config.inference.backend
    if config.ray.use_ray or not engine_class(backend).shares_model:
        where = "Ray" if config.ray.use_ray else f"inference.backend {backend!r}"
        raise ConfigError(
            f"model.load_in_4bit got true, which {where} does not support: 4-bit weights are not "
            "sent to other processes or engines. Set model.load_in_4bit to false, or "
            "ray.use_ray to false and inference.backend to local."
        )


def check_resampling(config: ConfigStore, user: UserComponents) -> None:
    """Raise where it is known too late which groups are to be replaced."""
    rewards = [user.reward_fn, *(part.components.reward_fn for part in user.mix)]
    is_of_batches = any(batch_type(reward) is not None for reward in rewards)
    num_tries = config.training.resample
    if config.training.max_staleness and num_tries and is_of_batches:
        raise ConfigError(
            f"training.resample got {num_tries} with training.max_staleness="
            f"{config.training.max_staleness}, and the reward function scores whole batches: "
            "whether a group has equal rewards is known only when its batch is trained on. Set "
            "one of the two to 0, or write a reward function of one trajectory."
        )


def policy_weights(learner: BaseLearner) -> dict[str, torch.Tensor]:
    """Return the policy's weights by their Hugging Face names, with merged adapters."""
    model = learner.model.policy
    return merged_weights(model) if has_adapters(model) else dict(model.state_dict())
