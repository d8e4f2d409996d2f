"""Loads the model of `turnwise chat`; for a run, also its system prompt, tools and sampling."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from turnwise.chat import ChatFormat
from turnwise.cli import settings
from turnwise.cli.chat_session import ChatTools
from turnwise.cli.run_paths import run_of
from turnwise.cli.run_settings import Supplied, which_checkpoint
from turnwise.config import ConfigStore, DatasetConfig, EnvironmentConfig
from turnwise.episode import episode_limits
from turnwise.errors import ConfigError
from turnwise.inference import BaseInferenceEngine, SamplingParams
from turnwise.runs.episode_store import EpisodeStore
from turnwise.runs.places import places_of
from turnwise.runs.run_folder import RunFolder
from turnwise.tools import ActionParser, ToolRegistry
from turnwise.tools.by_name import parser_by_name, tools_by_name
from turnwise.trainer.state import find_checkpoint, load_trained_model
from turnwise.user_code import settings_from


@dataclass
class ChatSetup:
    """An engine, and how conversations with it begin and are sampled."""

    engine: BaseInferenceEngine
    system_prompt: str | None
    registry: ToolRegistry | None
    parser: ActionParser | str
    temperature: float = 0.7
    top_p: float = 0.9
    max_tokens: int = 256
    template: str | None = None
    """A chat template for a tokenizer without one."""
    enable_thinking: bool | None = None
    """Whether the model thinks; None keeps the template's default."""
    about: str | None = None
    """A line about what is used of a run."""
    step: int | None = None
    """The step of a run's checkpoint."""
    closing: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """Stops the servers of tools."""

    @classmethod
    def of_model(
        cls,
        model: str,
        backend: str,
        options: Mapping[str, Any],
        tokenizer: str | None,
        supplied: Supplied,
    ) -> ChatSetup:
        """Load a model by its name, its folder, or the URL of a server."""
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
        has_tools: bool = True,
    ) -> ChatSetup:
        """Load the model of a run or a checkpoint, with the run's prompt, tools and sampling.

        Without `has_tools` those of the run are not imported: clients of a server bring theirs.
        """
        from turnwise import inference

        found = find_checkpoint(source, which_checkpoint(checkpoint))
        loaded, config = load_trained_model(found.path, trust_remote_code=trust_remote_code)
        environment = config.environment_name
        closing = contextlib.ExitStack()
        with settings_from(source, is_trusted=trust_remote_code):
            _without_environment(config)
            config.tools = config.tools if has_tools else []
            supplied.put_into(config)
            run = run_of(source)
            settings.find_code(config, places_of(run), run=run)
            registry = tools_by_name(config.tools, closing) if config.tools else None
            parser = parser_by_name(config.parser)
        if supplied.system_prompt is None and registry is None:
            config.system_prompt = _recorded_prompt(run) or config.system_prompt
        limits = episode_limits(config)
        return cls(
            inference.create_inference_engine(loaded.model, backend, tokenizer=loaded.tokenizer),
            config.system_prompt,
            registry,
            parser,
            config.inference.temperature,
            config.inference.top_p,
            limits.max_tokens_per_turn or 256,
            None if loaded.tokenizer.chat_template else "plain",
            config.inference.enable_thinking,
            _about(found.step, config, registry, environment),
            found.step,
            closing,
        )

    def sampling(self, temperature: float | None, top_p: float | None) -> SamplingParams:
        """Return how replies are sampled; None keeps the run's value or the default of chats."""
        return SamplingParams(
            self.temperature if temperature is None else temperature,
            top_p=self.top_p if top_p is None else top_p,
        )

    def tools(self, chat: ChatFormat) -> ChatTools | None:
        return None if self.registry is None else ChatTools(self.registry, chat, self.parser)


def _without_environment(config: ConfigStore) -> None:
    """Remove the environment or agent, dataset and reward, which a chat does not use."""
    config.environments = config.agent = config.expert = None
    config.environment = EnvironmentConfig()
    config.dataset, config.eval_dataset = DatasetConfig(), DatasetConfig()
    config.reward = None


def _recorded_prompt(run: Path) -> str | None:
    """Return the system message of the run's last episodes, with what its environment added."""
    store = EpisodeStore(RunFolder(run).episodes, budget_bytes=0)  # it is only read
    with contextlib.suppress(ConfigError):  # a damaged file: the prompt of the settings is used
        for step in reversed(store.steps()):
            for episode in store.read(step):
                for message in episode.agent.messages[:1]:
                    return str(message["content"]) if message["role"] == "system" else None
    return None


def _about(step: int, config: ConfigStore, registry: ToolRegistry | None, environment: str) -> str:
    used = [
        "its system prompt" if config.system_prompt else "no system prompt",
        f"the tools {', '.join(registry.names)}" if registry is not None else "no tools",
    ]
    return (
        f"the model after step {step:,}, with {' and '.join(used)}; its environment {environment} "
        "is not used"
    )
