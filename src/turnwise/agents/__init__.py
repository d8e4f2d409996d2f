"""Agents that own their loop and call the model over HTTP, served with exact tokens."""

from turnwise.agents import _extra as _extra  # first: its error names what to install
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
