"""Episodes: a model, its tools and an environment, one episode or many at once."""

from turnwise.episode.collector import (
    Collection,
    EpisodeCollector,
    EpisodeFailed,
    collect,
    collect_async,
    run_episode,
    run_episode_async,
)
from turnwise.episode.episode import Episode
from turnwise.episode.multi_turn import (
    EpisodeReport,
    ManagedTurn,
    MultiTurnChatHarness,
    MultiTurnInferenceEngine,
    MultiTurnManager,
)
from turnwise.episode.options import (
    CollectorOptions,
    EpisodeLimits,
    EpisodeOptions,
    EpisodeSetup,
    ErrorPolicy,
    episode_limits,
    make_setup,
)
from turnwise.episode.seeds import derive_seed
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
    "EpisodeReport",
    "EpisodeResult",
    "EpisodeSetup",
    "EpisodeSummary",
    "EpisodeTask",
    "ErrorPolicy",
    "ManagedTurn",
    "MultiTurnChatHarness",
    "MultiTurnInferenceEngine",
    "MultiTurnManager",
    "TurnRecord",
    "collect",
    "collect_async",
    "derive_seed",
    "episode_limits",
    "make_setup",
    "run_episode",
    "run_episode_async",
]
