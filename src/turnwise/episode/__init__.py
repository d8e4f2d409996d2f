"""Episodes: a model, its tools and an environment, one episode or many at once."""

from turnwise.episode.collector import (
    Collection,
    EpisodeCollector,
    EpisodeFailed,
    collect,
    run_episode,
    run_episode_async,
)
from turnwise.episode.episode import Episode
from turnwise.episode.options import (
    CollectorOptions,
    EpisodeLimits,
    EpisodeOptions,
    episode_limits,
    make_setup,
)
from turnwise.episode.types import (
    AgentRecord,
    EpisodeResult,
    EpisodeSummary,
    EpisodeTask,
    TurnRecord,
)

__all__ = [
    "AgentRecord",
    "Collection",
    "CollectorOptions",
    "Episode",
    "EpisodeCollector",
    "EpisodeFailed",
    "EpisodeLimits",
    "EpisodeOptions",
    "EpisodeResult",
    "EpisodeSummary",
    "EpisodeTask",
    "TurnRecord",
    "collect",
    "episode_limits",
    "make_setup",
    "run_episode",
    "run_episode_async",
]
