"""Plays an episode by a person or a scripted player in the terminal, with tools if any."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from turnwise.env.base import BaseEnvironment
from turnwise.env.driver import reset_environment, step_environment
from turnwise.env.players import ending_of
from turnwise.errors import ConfigError, did_you_mean
from turnwise.tools import ActionParser, ToolCall, ToolRegistry
from turnwise.tools.base import marked_tools
from turnwise.types import EpisodeStatus, StepResult, Trajectory

if TYPE_CHECKING:
    from turnwise.cli.play_screen import Screen
    from turnwise.episode.actions import Actions
    from turnwise.episode.messages import MessageBuilder
    from turnwise.episode.options import EpisodeLimits, ParserChoice
    from turnwise.reward import RewardFn

Chooser = Callable[[BaseEnvironment], str]
"""Returns the next action in an environment."""


@dataclass
class Played:
    """A finished episode, as it is printed."""

    trajectory: Trajectory
    calls: list[Sequence[ToolCall]] = field(default_factory=list)
    """The tool calls of each turn."""
    score: float | None = None
    """The reward by the run's reward function; None: there is none."""
    row: int | None = None
    """The row of the dataset, from 0."""


@dataclass(frozen=True)
class Rules:
    """The components that a run adds to its environment; none by default."""

    tools: ToolRegistry | None = None
    parser: ParserChoice = "auto"
    system_prompt: str = ""
    limits: EpisodeLimits | None = None
    messages: MessageBuilder | None = None
    """That of the run's chat template, which the parser `auto` follows."""
    reward_fn: RewardFn | None = None
    rows: Sequence[Mapping[str, Any]] | None = None

    def row_of(self, seed: int) -> int | None:
        """Return the row of the dataset for a seed; None without a dataset."""
        return None if not self.rows else seed % len(self.rows)

    def max_turns(self, env: BaseEnvironment) -> int | None:
        """Return the limit of turns; None: no limit. A turn that calls tools is not a step."""
        has_tools = self.tools is not None or bool(marked_tools(env))
        if self.limits is None:
            return None if has_tools else env.max_steps
        limit = self.limits.turn_limit(env.max_steps, has_tools=has_tools)
        return limit if has_tools else min(env.max_steps, limit)


@dataclass
class Moved:
    """The result of one turn."""

    step: StepResult
    state: str = ""
    calls: Sequence[ToolCall] = ()
    status: EpisodeStatus | None = None
    """The status of an episode that it ended; None: the episode continues."""


def play_episode(
    env: BaseEnvironment, choose: Chooser, seed: int, screen: Screen, rules: Rules
) -> Played:
    """Play one episode; exceptions of the environment propagate.

    The event loop runs only while the environment is called, so that Ctrl-C reaches `input`.
    """
    loop = asyncio.new_event_loop()
    played = Played(Trajectory(seed=seed), row=rules.row_of(seed))
    trajectory, moves = played.trajectory, Moves(env, rules)
    try:
        if played.row is not None and rules.rows is not None:
            env.task = trajectory.task = dict(rules.rows[played.row])
        observation = loop.run_until_complete(reset_environment(env, seed))
        moves.begin()
        prefix = "\n\n".join(filter(None, [rules.system_prompt, env.get_prompt_prefix().strip()]))
        trajectory.prompts = [prefix, observation]
        screen.moves = moves
        max_turns = rules.max_turns(env)
        screen.start(played, prefix, observation, max_turns)
        status = None
        while status is None:
            action = choose(env)
            moved = loop.run_until_complete(moves.act(action))
            _record(played, action, moved)
            screen.turn(moved.step, moved.calls)
            status = moved.status
            if status is None and trajectory.num_turns == max_turns:
                status = EpisodeStatus.TRUNCATED_BY_TURNS
        trajectory.status = status
        played.score = loop.run_until_complete(_score(trajectory, env, rules))
    finally:
        loop.run_until_complete(moves.close())
        env.close()
        loop.close()
    screen.ending(played)
    return played


class Moves:
    """Executes actions in one environment: a step, or tool calls if there are tools."""

    def __init__(self, env: BaseEnvironment, rules: Rules) -> None:
        self._env = env
        self._rules = rules
        self._actions: Actions | None = None

    def begin(self) -> None:
        """Add the environment's own tools to those of the run; call it after the reset."""
        if self._rules.tools is None and not marked_tools(self._env):
            return
        # Late: they import torch, which a game without tools does not need.
        from turnwise.episode.actions import Actions
        from turnwise.episode.environment_session import CallMode, EnvironmentSession
        from turnwise.episode.options import EpisodeLimits
        from turnwise.episode.timing import EpisodeTimer

        rules, limits = self._rules, self._rules.limits or EpisodeLimits()
        session = EnvironmentSession(self._env, CallMode("inline"))
        session.attach(self._env)
        self._actions = Actions(
            rules.messages, limits, EpisodeTimer(), session, rules.tools, rules.parser
        )
        self._actions.begin()

    @property
    def parser(self) -> ActionParser | None:
        """The parser of tool calls; None: there are no tools."""
        return None if self._actions is None else self._actions.parser

    def tools_help(self) -> str:
        """Return a help text about the tools; empty without tools."""
        if self._actions is None:
            return ""
        tools = [
            f"/{definition.name} {' '.join(f'{name}=...' for name in _arguments(definition))}  "
            f"{definition.description}".rstrip()
            for definition in self._actions.definitions
        ]
        return "\n".join(["tools:", *(f"  {line}" for line in tools)])

    def call_of(self, line: str) -> str | None:
        """Return a typed `/tool name=value ...` in the model's format; None for other lines.

        `ConfigError` for one that cannot be meant: it would be an action, and cost a turn.
        """
        if self.parser is None or self._actions is None or not line.startswith("/"):
            return None
        try:
            name, *words = shlex.split(line[1:]) or [""]
        except ValueError as error:
            raise ConfigError(f"{line} cannot be read: {error}.") from None
        tools = {definition.name: definition for definition in self._actions.definitions}
        if name not in tools:
            raise ConfigError(f"there is no tool {name!r}. {did_you_mean(name, tools)}")
        if any("=" not in word for word in words):
            expected = " ".join(f"{argument}=..." for argument in _arguments(tools[name]))
            raise ConfigError(f"got {line}, expected /{name} {expected}".rstrip())
        given = dict(word.partition("=")[::2] for word in words)
        return self.parser.render(ToolCall(name, {k: _value(v) for k, v in given.items()}))

    async def act(self, text: str) -> Moved:
        if self._actions is None:
            state = self._env.get_state_description()
            step = await step_environment(self._env, text)
            return Moved(step, state, (), ending_of(step) if step.done else None)
        done = await self._actions.act(text)
        cut = done.status is not None and done.status.is_truncated
        step = StepResult(done.observation, done.reward, done.done, cut, done.info)
        return Moved(step, done.state, done.calls, done.status)

    async def close(self) -> None:
        if self._actions is not None:
            await self._actions.close(None)


def _record(played: Played, action: str, moved: Moved) -> None:
    trajectory, step = played.trajectory, moved.step
    trajectory.states.append(moved.state)
    trajectory.actions.append(action)
    trajectory.observations.append(step.observation)
    trajectory.rewards.append(step.reward)
    trajectory.dones.append(step.terminated)
    trajectory.infos.append(step.info)
    played.calls.append(moved.calls)


async def _score(trajectory: Trajectory, env: BaseEnvironment, rules: Rules) -> float | None:
    from turnwise.reward import batch_type, compute_reward_async

    if rules.reward_fn is None or batch_type(rules.reward_fn) is not None:
        return None
    timeout = None if rules.limits is None else rules.limits.reward_timeout
    reward = await compute_reward_async(trajectory, env, rules.reward_fn, timeout=timeout)
    return reward.total


def _arguments(definition: Any) -> Sequence[str]:
    schema: Mapping[str, Any] = definition.parameters or {}
    return list(schema.get("properties", {}))


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
