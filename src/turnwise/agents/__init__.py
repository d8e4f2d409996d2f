"""Agents that own their loop and call the model over HTTP, served with exact tokens."""

from turnwise.agents.episode import AgentEpisode, AgentEpisodes
from turnwise.agents.gateway import LLM, Gateway
from turnwise.agents.runner import AgentSource, CommandResult

__all__ = ["LLM", "AgentEpisode", "AgentEpisodes", "AgentSource", "CommandResult", "Gateway"]
