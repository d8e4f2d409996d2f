"""One episode in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from turnwise.chat import ChatFormat
from turnwise.deadlines import run_sync
from turnwise.env import BaseEnvironment, environment_factory
from turnwise.env.catalog import EnvironmentFactory, EnvironmentSource
from turnwise.episode.actions import ParserChoice
from turnwise.episode.episode import Episode
from turnwise.episode.limits import EpisodeLimits
from turnwise.episode.setup import make_setup
from turnwise.episode.types import EpisodeResult
from turnwise.episode.world import EnvironmentCalls
from turnwise.inference import SamplingParams
from turnwise.inference.protocol import Engine
from turnwise.reward import RewardFn
from turnwise.tools import Tool, ToolRegistry


async def run_episode_async(
    engine: Engine,
    environment: EnvironmentSource | None,
    *,
    seed: int = 0,
    prompt: str = "",
    task: Mapping[str, Any] | None = None,
    chat_format: ChatFormat | None = None,
    limits: EpisodeLimits | None = None,
    sampling: SamplingParams | None = None,
    tools: ToolRegistry | Iterable[Tool | Callable[..., Any]] | None = None,
    parser: ParserChoice = "auto",
    system_prompt: str | None = None,
    reward_fn: RewardFn | None = None,
    environment_calls: EnvironmentCalls = "auto",
) -> EpisodeResult:
    """Play one episode. An environment that is given as an object is played on, and left open."""
    setup = make_setup(
        engine,
        chat_format=chat_format,
        limits=limits,
        sampling=sampling,
        tools=tools,
        parser=parser,
        system_prompt=system_prompt,
        reward_fn=reward_fn,
        environment_calls=environment_calls,
    )
    return await Episode(setup, source_of(environment), seed=seed, prompt=prompt, task=task).run()


def source_of(
    environment: EnvironmentSource | None,
) -> EnvironmentFactory | BaseEnvironment | None:
    """An object as it is; a name, a class or a factory as what makes one."""
    if environment is None or isinstance(environment, BaseEnvironment):
        return environment
    return environment_factory(environment)


def run_episode(
    engine: Engine, environment: EnvironmentSource | None, **options: Any
) -> EpisodeResult:
    """`run_episode_async` for ordinary code, with the same options."""
    return run_sync(run_episode_async(engine, environment, **options))
