"""What `turnwise chat` talks with: a model, or a run's model with the run's prompt and tools."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from turnwise.chat import ChatFormat
from turnwise.cli import settings
from turnwise.cli.run_parts import Supplied
from turnwise.cli.run_place import run_of
from turnwise.cli.talk_tools import TalkTools
from turnwise.config import ConfigStore, DatasetConfig, EnvironmentConfig
from turnwise.inference import BaseInferenceEngine, SamplingParams
from turnwise.tools import ActionParser, ToolRegistry
from turnwise.tools.by_name import parser_by_name, tools_by_name
from turnwise.trainer.rollout import limits_of
from turnwise.trainer.state import find_checkpoint, load_trained_model
from turnwise.user_code import settings_from


@dataclass
class ChatParts:
    """An engine and what the conversations with it begin with."""

    engine: BaseInferenceEngine
    system_prompt: str | None
    registry: ToolRegistry | None
    parser: ActionParser | str
    temperature: float = 0.7
    top_p: float = 0.9
    max_tokens: int = 256
    template: str | None = None
    """A chat template for a tokenizer without one."""
    about: str | None = None
    """One line that says what of a run is used."""
    closing: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """Ends servers of tools."""

    @classmethod
    def of_model(
        cls,
        model: str,
        backend: str,
        options: Mapping[str, Any],
        tokenizer: str | None,
        supplied: Supplied,
    ) -> ChatParts:
        """A model by its name, its folder, or the URL of a server."""
        from turnwise import inference

        closing = contextlib.ExitStack()
        registry = tools_by_name(supplied.tools, closing) if supplied.tools else None
        parser = parser_by_name(supplied.parser or "auto")
        engine = inference.create_inference_engine(model, backend, options, tokenizer=tokenizer)
        return cls(engine, supplied.system_prompt, registry, parser, closing=closing)

    @classmethod
    def of_run(
        cls,
        source: Path,
        checkpoint: str,
        backend: str,
        supplied: Supplied,
        trust_remote_code: bool,
    ) -> ChatParts:
        """The model of a run or a checkpoint, with the run's prompt, tools and sampling."""
        from turnwise import inference

        which: Literal["best", "last"] = "best" if checkpoint == "best" else "last"
        found = find_checkpoint(source, which)
        loaded, config = load_trained_model(found.path, trust_remote_code=trust_remote_code)
        environment = config.environment_name
        closing = contextlib.ExitStack()
        with settings_from(source, is_trusted=trust_remote_code):
            _without_environment(config)
            supplied.put_into(config)
            run = run_of(source)
            settings.find_code(config, settings.run_folders(run), run=run)
            registry = tools_by_name(config.tools, closing) if config.tools else None
            parser = parser_by_name(config.parser)
        limits = limits_of(config)
        return cls(
            inference.create_inference_engine(loaded.model, backend, tokenizer=loaded.tokenizer),
            config.system_prompt,
            registry,
            parser,
            config.inference.temperature,
            config.inference.top_p,
            limits.max_tokens_per_turn or 256,
            None if loaded.tokenizer.chat_template else "plain",
            _about(found.step, config, registry, environment),
            closing,
        )

    def sampling(self, temperature: float | None, top_p: float | None) -> SamplingParams:
        """How answers are sampled; None: as the run was, or as suits a talk."""
        return SamplingParams(
            self.temperature if temperature is None else temperature,
            top_p=self.top_p if top_p is None else top_p,
        )

    def tools(self, chat: ChatFormat) -> TalkTools | None:
        return None if self.registry is None else TalkTools(self.registry, chat, self.parser)


def _without_environment(config: ConfigStore) -> None:
    """Leave out what takes no part in a talk, so that it need not be found."""
    config.environments = None
    config.environment = EnvironmentConfig()
    config.dataset, config.eval_dataset = DatasetConfig(), DatasetConfig()
    config.reward = None


def _about(step: int, config: ConfigStore, registry: ToolRegistry | None, environment: str) -> str:
    used = [
        "its system prompt" if config.system_prompt else "no system prompt",
        f"the tools {', '.join(registry.names)}" if registry is not None else "no tools",
    ]
    return (
        f"the model after step {step:,}, with {' and '.join(used)}; its environment {environment} "
        "takes no part"
    )
