"""Agents that own their loop and call the model over HTTP, served with exact tokens.

Names are imported when they are first used: the server needs the extra `agents`, and a session
without a server (`turnwise chat`) does not.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnwise.agents.episode import AgentEpisode, AgentEpisodes
    from turnwise.agents.expert import Expert
    from turnwise.agents.gateway import LLM, Gateway
    from turnwise.agents.runner import AgentSource, CommandResult, check_agent

__all__ = [
    "LLM",
    "AgentEpisode",
    "AgentEpisodes",
    "AgentSource",
    "CommandResult",
    "Expert",
    "Gateway",
    "check_agent",
]

_MODULES = {
    "LLM": "gateway",
    "AgentEpisode": "episode",
    "AgentEpisodes": "episode",
    "AgentSource": "runner",
    "CommandResult": "runner",
    "Expert": "expert",
    "Gateway": "gateway",
    "check_agent": "runner",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
