"""Builds the components of a run from the settings and the user's components."""

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from turnwise.config import ConfigStore
from turnwise.env.catalog import EnvironmentFactory
from turnwise.episode import CollectorOptions, EpisodeCollector
from turnwise.episode.collector import EpisodeSource
from turnwise.errors import ConfigError
from turnwise.inference import BaseInferenceEngine, create_inference_engine, engine_class
from turnwise.learner import make_learner
from turnwise.learner.base import BaseLearner
from turnwise.models import model_folder
from turnwise.models.probing import rope_types, rotary_limit
from turnwise.models.weight_files import read_wide
from turnwise.trainer.checks import check_run
from turnwise.trainer.components import EpisodeKind, UserComponents
from turnwise.trainer.learning import Advantages, Policy, RunComponents
from turnwise.trainer.state import load_configured_model, use_model
from turnwise.user_code import require_model_code

Collector = TypeVar("Collector", bound=EpisodeCollector)


def assemble(
    config: ConfigStore, user: UserComponents, total_steps: int | None = None
) -> RunComponents:
    """Build everything that a run needs in this process, in the order of the dependencies."""
    check_run(config, user)
    with contextlib.ExitStack() as closing:  # what was started ends, should a later part fail
        source = user.episode_source(config, closing)
        model, tokenizer = user.model_and_tokenizer(config)
        policy = assemble_policy(config, user, model, tokenizer, total_steps)
        closing.callback(policy.engine.close)
        engines, others = {}, {}
        for player, item in config.policies.items():
            settings = dataclasses.replace(config, model=copy.copy(config.model))
            if item.model is not None:
                use_model(settings, item.model)
                loaded = load_configured_model(settings)
                other, tokens = loaded.model, loaded.tokenizer
            elif user.model is not None:
                other, tokens = copy.deepcopy(user.model), tokenizer
            else:
                other, tokens = user.model_and_tokenizer(config)
            if item.trains:
                others[player] = assemble_policy(settings, user, other, tokens, total_steps)
                engines[player] = others[player].engine
            else:
                engines[player] = make_engine(settings, other, tokens)
            closing.callback(engines[player].close)
        options = dataclasses.replace(user.episode_options(config, closing), engines=engines)
        kinds = user.mix_kinds(options, closing)
        collector = make_collector(EpisodeCollector, policy.engine, source, options, kinds)
        components = RunComponents(**vars(policy), collector=collector, others=others)
        if begins_with_other_weights(config, user, model):
            components.publish_weights()
        components.closing = closing.pop_all()
        return components


def assemble_policy(
    config: ConfigStore, user: UserComponents, model: Any, tokenizer: Any, total_steps: int | None
) -> Policy:
    """Return a model with what samples from it and what it learns by."""
    algorithm = user.algorithm(config)
    # The learner first: it may add adapters to the modules that the engine samples from.
    learner = make_learner(config, model, algorithm=algorithm, total_steps=total_steps)
    learner.options = dataclasses.replace(learner.options, horizon=user.horizon(config))
    engine = make_engine(config, model, tokenizer)
    learner.model.trunk.merges_adapters = engine.merges_adapters
    is_exact = samples_exactly(config, learner)
    advantages = Advantages(
        config.training, learner, algorithm.estimator, sampler_is_exact=is_exact
    )
    return Policy(tokenizer, learner, engine, advantages)


def begins_with_other_weights(config: ConfigStore, user: UserComponents, model: Any) -> bool:
    """Whether an engine may have other weights than the learner before the first update.

    A server may have those of another run, vLLM and SGLang cannot load a user's own model, and
    they round the weights of float32 files to nearest.
    """
    is_elsewhere = config.inference.url is not None or user.model is not None
    is_copied = not engine_class(config.inference.backend).shares_model
    return is_copied and (is_elsewhere or bool(read_wide(model)))


def make_collector(
    make: Callable[..., Collector],
    engine: BaseInferenceEngine,
    source: EnvironmentFactory | EpisodeSource,
    options: CollectorOptions,
    kinds: Mapping[str, EpisodeKind],
) -> Collector:
    """Return a collector for one environment or agent, or for the environments of a mix."""
    collectors: dict[str, EpisodeCollector] = {}
    chat = options.chat_format  # one for all: it depends on the tokenizer alone
    for name, kind in kinds.items():
        collector = EpisodeCollector(engine, kind.factory, kind.options, chat_format=chat)
        collectors[name] = collector
        chat = collector.setup.chat
    return make(engine, source, options, parts=collectors, chat_format=chat)


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
        options = dict(inference.options)
        if inference.backend == "local":
            options.setdefault("own_stream", config.training.max_staleness > 0)
        return create_inference_engine(model, inference.backend, options, tokenizer=tokenizer)
    path = config.model.local_path or config.model.model_name
    if config.model.trust_remote_code:
        require_model_code(path)
    options = {
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
    is_other = inference.backend in ("vllm", "sglang")
    if is_other and model is not None and "dynamic" in rope_types(model.config):
        raise ConfigError(
            f"inference.backend got {inference.backend!r}, and {path} has rope_type 'dynamic', "
            "for which it takes other frequencies than the learner. Set it to 'local'."
        )
    if limit is not None and is_other and inference.url is None:
        # Where longer texts are possible they compute longrope with other frequencies.
        options["max_model_len"] = min(options.get("max_model_len") or limit, limit)
    source = inference.url or path
    engine = create_inference_engine(source, inference.backend, options, tokenizer=tokenizer)
    if limit is not None and is_other and engine.context_length > limit:
        longest = engine.context_length
        engine.close()
        raise ConfigError(
            f"the server at {inference.url} takes {longest} tokens. Start it with at most {limit}: "
            f"beyond them {path} changes its rotary frequencies (rope_type longrope)."
        )
    return engine
