"""Episodes in one call: `run_episode` plays one, `collect` plays many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.deadlines import run_sync
from turnwise.env import BaseEnvironment, environment_factory
from turnwise.env.catalog import EnvironmentFactory, EnvironmentSource
from turnwise.episode.collector import Collection, EpisodeCollector
from turnwise.episode.episode import Episode
from turnwise.episode.setup import make_setup
from turnwise.episode.types import EpisodeResult, EpisodeTask
from turnwise.inference.protocol import Engine


async def run_episode_async(
    engine: Engine,
    environment: EnvironmentSource | None,
    *,
    seed: int = 0,
    prompt: str = "",
    task: Mapping[str, Any] | None = None,
    **options: Any,
) -> EpisodeResult:
    """Plays one episode. An environment that is given as an object is used and left open.

    `options` are fields of `EpisodeOptions`; `seed` is the environment's.
    """
    setup = make_setup(engine, **options)
    asked = EpisodeTask(seed, prompt=prompt, task=task)
    return await Episode(setup, source_of(environment), asked).run()


def source_of(
    environment: EnvironmentSource | None,
) -> EnvironmentFactory | BaseEnvironment | None:
    """Returns an environment as it is, and a factory for a name, a class or a factory."""
    if environment is None or isinstance(environment, BaseEnvironment):
        return environment
    return environment_factory(environment)


def run_episode(
    engine: Engine, environment: EnvironmentSource | None, **options: Any
) -> EpisodeResult:
    """`run_episode_async` for synchronous code, with the same options."""
    return run_sync(run_episode_async(engine, environment, **options))


async def collect_async(
    engine: Engine,
    environment: EnvironmentSource,
    groups: int | Sequence[int],
    group_size: int = 1,
    **options: Any,
) -> Collection:
    """Plays groups of episodes; `options` are those of `EpisodeCollector`."""
    return await EpisodeCollector(engine, environment, **options).collect(groups, group_size)


def collect(
    engine: Engine,
    environment: EnvironmentSource,
    groups: int | Sequence[int],
    group_size: int = 1,
    **options: Any,
) -> Collection:
    """`collect_async` for synchronous code."""
    return run_sync(collect_async(engine, environment, groups, group_size, **options))
