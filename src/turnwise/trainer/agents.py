"""Agents that own their loop, as a user passes them to the trainer or names them in the settings.

`turnwise.agents` plays them. It is imported when there is an agent: it needs an extra.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwise.config import ConfigStore
from turnwise.errors import ConfigError
from turnwise.user_code import (
    callable_label,
    fingerprint,
    import_object,
    names_code,
    remember_use,
    require_use,
)

if TYPE_CHECKING:
    from turnwise.agents import AgentEpisodes, AgentSource, Expert
    from turnwise.chat.tree import ThoughtPolicy

_INTERPRETERS = {"python", "python3", "node", "npx", "uv", "uvx", "run", "bash", "sh", "env"}
"""Words before the name of the program that is meant."""


def agent_of(given: Any, config: ConfigStore) -> AgentSource | None:
    """Return the agent that was given or that the settings name; None without one."""
    agent = config.agent if given is None else given
    if agent is None:
        return None
    from turnwise.agents import check_agent

    if not isinstance(agent, str):
        return check_agent(agent)
    if names_code(agent) or agent.startswith("<"):
        return check_agent(import_object(agent, option="--agent or the setting agent"))
    if given is None:
        require_use(_use(agent))
    return check_agent(agent)


def expert_of(given: Any, config: ConfigStore, agent: AgentSource | None) -> Expert | None:
    """Return the agent's expert that was given or that the settings name; None without one."""
    expert = config.expert if given is None else given
    if agent is None and expert is not None:
        raise ConfigError(
            "expert is given without an agent, whose turns it would write. An environment has its "
            "own expert, the method expert_action."
        )
    if isinstance(expert, str):
        expert = import_object(expert, option="the setting expert")
    if expert is not None and not callable(expert):
        raise ConfigError(
            f"expert got {type(expert).__name__}, expected a function of (messages, tools) that "
            "returns the reply as a text or a message"
        )
    if expert is not None:
        try:
            inspect.signature(expert).bind([], [])
        except ValueError:  # a function of C, which does not say what it takes
            pass
        except TypeError as error:
            raise ConfigError(
                f"expert {callable_label(expert)} cannot be called with (messages, tools): {error}"
            ) from None
    start = config.training.warm_start
    if agent is not None and (start == "random" or (start == "expert" and expert is None)):
        raise ConfigError(
            f"training.warm_start got {start!r}, and an agent has no such player. Set "
            "training.warm_start to expert, and pass Trainer(expert=function) or set expert: "
            "file.py:function; it takes (messages, tools) and returns what the model should reply."
        )
    checked: Expert | None = expert
    return checked


def agent_episodes(agent: AgentSource, expert: Expert | None, config: ConfigStore) -> AgentEpisodes:
    """Return what creates the agent's episodes; the owner closes it."""
    from turnwise.agents import AgentEpisodes

    thoughts: ThoughtPolicy = "keep" if config.inference.thoughts == "keep" else "as_sent"
    return AgentEpisodes(agent, expert=expert, thoughts=thoughts)


def agent_name(agent: AgentSource) -> str:
    """Return the name of an agent: that of its function, class or program.

    >>> agent_name("python -m my_agent --task {task}"), agent_name("./bin/solve.sh {task}")
    ('my_agent', 'solve')
    """
    if isinstance(agent, str):
        words = [word for word in shlex.split(agent) if not word.startswith("-")]
        programs = [Path(word).stem for word in words]
        return next((name for name in programs if name not in _INTERPRETERS), programs[0])
    while isinstance(agent, functools.partial):
        agent = agent.func
    return str(getattr(agent, "__qualname__", type(agent).__name__)).rpartition(".")[2]


def agent_label(agent: AgentSource) -> str:
    """Return an agent as the settings have it: a command, or the name of a function."""
    return agent if isinstance(agent, str) else callable_label(agent)


def agent_hash(agent: AgentSource) -> str:
    """Return a hash of what an agent does; of a command, of its words and the files it names."""
    if not isinstance(agent, str):
        return fingerprint(agent)
    digest = hashlib.sha256(agent.encode())
    for word in shlex.split(agent):
        if Path(word).suffix and Path(word).is_file():
            digest.update(Path(word).read_bytes())
    return digest.hexdigest()[:16]


def remember_agent(label: str | None) -> None:
    """Record that the user ran this command: a run folder that names it may use it later."""
    if label is not None and not names_code(label) and not label.startswith("<"):
        remember_use(_use(label))


def no_environment(name: str) -> ConfigError:
    """Return the error of a command that needs an environment, for the run of an agent."""
    return ConfigError(
        f"this is played by the agent {name}, which has no environment. turnwise eval plays "
        "it, turnwise view shows its conversations, turnwise serve lets you talk to its model."
    )


def check_alone(agent: Any, others: dict[str, Any]) -> None:
    """Raise if an agent was given together with what belongs to an environment."""
    for name, value in others.items():
        if agent is not None and value is not None:
            raise ConfigError(
                f"agent= and {name}= are both given. An agent has its own loop, tools and prompts, "
                f"and no environment: leave out {name}=, or leave out agent=."
            )


def _use(command: str) -> str:
    return f"the agent's command {command!r}"
