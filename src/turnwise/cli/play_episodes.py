"""Plays the episodes of `turnwise play`: by a person or a script, by a model or a function.

A person or a script in an environment alone needs no torch, which takes seconds to import.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from turnwise.cli.common import say, working
from turnwise.cli.settings import load_player
from turnwise.config import ConfigStore
from turnwise.env.base import BaseEnvironment
from turnwise.env.catalog import environment_factory
from turnwise.env.driver import reset_environment, step_environment
from turnwise.env.players import ending_of, expert_player, random_player
from turnwise.tools import ToolCall, ToolRegistry
from turnwise.tools.base import marked_tools
from turnwise.types import EpisodeStatus, StepResult, Trajectory

if TYPE_CHECKING:
    from turnwise.cli.play_screen import Screen
    from turnwise.episode import EpisodeResult
    from turnwise.episode.actions import Actions
    from turnwise.episode.messages import MessageBuilder
    from turnwise.episode.options import EpisodeLimits
    from turnwise.episode.types import AgentRecord, TurnRecord
    from turnwise.trainer.components import UserComponents


@dataclass
class Played:
    """An episode, as it is printed."""

    trajectory: Trajectory
    row: int | None = None
    """The row of the dataset, from 0."""
    calls: list[Sequence[ToolCall]] = field(default_factory=list)
    """The tool calls of each turn."""
    score: float | None = None
    """The reward by the run's reward function; None: there is none."""

    @classmethod
    def begin(cls, seed: int, components: UserComponents | None) -> Played:
        """Return an episode without turns; its task is a row of the dataset, if there is one."""
        rows = None if components is None else components.eval_rows
        if not rows:
            return cls(Trajectory(seed=seed))
        row = seed % len(rows)
        return cls(Trajectory(seed=seed, task=dict(rows[row])), row)


def turn_limit(env: BaseEnvironment, limits: EpisodeLimits | None, has_tools: bool) -> int | None:
    """Return the limit of turns; None: no limit. A turn that calls tools is not a step."""
    if limits is None:
        return None if has_tools else env.max_steps
    limit = limits.turn_limit(env.max_steps, has_tools=has_tools)
    return limit if has_tools else min(env.max_steps, limit)


def play_scripted(
    config: ConfigStore,
    player: str,
    seeds: Sequence[int],
    screen: Screen,
    delay: float,
    is_bare: bool,
) -> Iterator[Played]:
    """Play one episode per seed by a person, the expert or the random player.

    `is_bare`: there is only an environment, without other components, and nothing imports torch.
    """
    scripted = expert_player if player == "expert" else random_player(seeds[0])

    def choose(env: BaseEnvironment, actions: Actions | None) -> str:
        if player == "human":
            return screen.ask(env, actions)
        time.sleep(delay)
        action = scripted(env, "")
        assert isinstance(action, str)
        screen.action(action)
        return action

    components = tools = messages = None
    with contextlib.ExitStack() as closing:
        if is_bare:
            factory = environment_factory(config.environment.name, config.environment)
        else:
            from turnwise.trainer.components import UserComponents

            components = UserComponents().filled_from(config)
            factory = components.factory(config)
            tools = components.registry(config, closing)
            has_tools = tools is not None or bool(marked_tools(factory()))
            if has_tools and (components.parser or "auto") == "auto":
                # The parser `auto` follows the chat template of the run's model.
                from turnwise.episode.messages import MessageBuilder
                from turnwise.episode.setup import format_for
                from turnwise.inference import ScriptedEngine
                from turnwise.trainer.state import load_configured_tokenizer

                engine = ScriptedEngine(load_configured_tokenizer(config))
                messages = MessageBuilder(format_for(engine, config.inference.enable_thinking))
        for seed in seeds:
            yield _play_episode(factory(), choose, seed, screen, components, tools, messages)


def _play_episode(
    env: BaseEnvironment,
    choose: Callable[[BaseEnvironment, Actions | None], str],
    seed: int,
    screen: Screen,
    components: UserComponents | None,
    tools: ToolRegistry | None,
    messages: MessageBuilder | None,
) -> Played:
    """Play one episode; exceptions of the environment propagate.

    The event loop runs only while the environment is called, so that Ctrl-C reaches `input`.
    """
    loop = asyncio.new_event_loop()
    limits = None if components is None else components.limits
    played = Played.begin(seed, components)
    trajectory = played.trajectory
    actions: Actions | None = None
    try:
        if trajectory.task is not None:
            env.task = trajectory.task
        observation = loop.run_until_complete(reset_environment(env, seed))
        has_tools = tools is not None or bool(marked_tools(env))
        if has_tools:
            actions = _begin_actions(env, components, tools, messages)
        prompt = "" if components is None else components.system_prompt or ""
        prefix = "\n\n".join(filter(None, [prompt, env.get_prompt_prefix().strip()]))
        trajectory.prompts = [prefix, observation]
        max_turns = turn_limit(env, limits, has_tools)
        screen.start(played, prefix, observation, max_turns)
        status: EpisodeStatus | None = None
        while status is None:
            action = choose(env, actions)
            if actions is None:
                trajectory.states.append(env.get_state_description())
                step = loop.run_until_complete(step_environment(env, action))
                status = ending_of(step) if step.done else None
                played.calls.append(())
            else:
                outcome = loop.run_until_complete(actions.act(action))
                status = outcome.status
                is_cut = status is not None and status.is_truncated
                step = StepResult(
                    outcome.observation, outcome.reward, outcome.done, is_cut, outcome.info
                )
                trajectory.states.append(outcome.state)
                played.calls.append(outcome.calls)
            trajectory.actions.append(action)
            trajectory.observations.append(step.observation)
            trajectory.rewards.append(step.reward)
            trajectory.dones.append(step.terminated)
            trajectory.infos.append(step.info)
            screen.turn(step, played.calls[-1])
            if status is None and trajectory.num_turns == max_turns:
                status = EpisodeStatus.TRUNCATED_BY_TURNS
        trajectory.status = status
        if components is not None and components.reward_fn is not None:
            played.score = loop.run_until_complete(_score(trajectory, env, components))
    finally:
        if actions is not None:
            loop.run_until_complete(actions.close(None))
        env.close()
        loop.close()
    screen.ending(played)
    return played


def _begin_actions(
    env: BaseEnvironment,
    components: UserComponents | None,
    tools: ToolRegistry | None,
    messages: MessageBuilder | None,
) -> Actions:
    """Return what executes tool calls: of the run's tools, and of the environment's own."""
    from turnwise.episode.actions import Actions
    from turnwise.episode.environment_session import CallMode, EnvironmentSession
    from turnwise.episode.options import EpisodeLimits
    from turnwise.episode.timing import EpisodeTimer

    session = EnvironmentSession(env, CallMode("inline"))
    session.attach(env)
    limits = None if components is None else components.limits
    parser = None if components is None else components.parser
    actions = Actions(
        messages, limits or EpisodeLimits(), EpisodeTimer(), session, tools, parser or "auto"
    )
    actions.begin()
    return actions


async def _score(
    trajectory: Trajectory, env: BaseEnvironment, components: UserComponents
) -> float | None:
    from turnwise.reward import batch_type, compute_reward_async

    if batch_type(components.reward_fn) is not None:
        return None
    timeout = None if components.limits is None else components.limits.reward_timeout
    reward = await compute_reward_async(trajectory, env, components.reward_fn, timeout=timeout)
    return reward.total


@dataclass(frozen=True)
class WatchedPlayer:
    """A model or a function that plays, and how."""

    name: str
    run: Path | None
    """The run or checkpoint that plays; None: a model, or `file.py:function`."""
    checkpoint: str
    model: str | None
    is_greedy: bool
    delay: float
    trust_remote_code: bool


def watch(
    config: ConfigStore, player: WatchedPlayer, seeds: Sequence[int], screen: Screen, debug: bool
) -> Iterator[Played]:
    """Play one episode per seed by a model, or by a function of the user."""
    with working(f"loading {player.name}"):
        from turnwise.cli.agents import agent_by_name
        from turnwise.cli.eval_episodes import engine_for
        from turnwise.episode import Episode, EpisodeCollector
        from turnwise.episode.player_engine import player_episode
        from turnwise.episode.types import EpisodeTask
        from turnwise.models import LoadedModel
        from turnwise.trainer.components import UserComponents
        from turnwise.trainer.evaluation import GREEDY
        from turnwise.trainer.state import load_configured_tokenizer
        from turnwise.trainer.stopping import StopRequest, run_unless_stopped

        agent = None
        if player.run is None and ".py:" in player.name:
            loaded = LoadedModel(None, load_configured_tokenizer(config))
            agent = agent_by_name(player.name)
        else:
            loaded = load_player(
                player.name,
                player.run,
                player.checkpoint,
                config,
                player.model,
                player.trust_remote_code,
            )
        components = UserComponents().filled_from(config)
        factory = components.factory(config)
    stop = StopRequest(lambda text: None)
    with contextlib.ExitStack() as closing:
        engine = closing.enter_context(engine_for(loaded))
        options = components.episode_options(config, closing)
        if player.is_greedy:
            options = dataclasses.replace(options, sampling=GREEDY)
        collector = EpisodeCollector(engine, factory, options)
        closing.enter_context(stop.listening(config.inference.stall_timeout))

        async def play(task: EpisodeTask, watcher: _Watcher) -> EpisodeResult:
            def make() -> BaseEnvironment:
                watcher.environment = factory()
                return watcher.environment

            if agent is not None:
                actor = agent(task.seed, 0)
                episode = player_episode(collector.setup, make, actor, task, watcher)
            else:
                setup = collector.setup.in_this_loop()
                episode = Episode(setup, make, task, watcher=watcher)
            result = await episode.run()
            await collector.score_together([result])
            return result

        for seed in seeds:
            played = Played.begin(seed, components)
            watcher = _Watcher(screen, played, collector.setup, player.delay)
            task = EpisodeTask(seed, task=played.trajectory.task)
            result = run_unless_stopped(play(task, watcher), stop)
            trajectory = played.trajectory
            trajectory.status, trajectory.error = result.status, result.error
            if result.status.is_error:
                screen.failed(str(result.error))
                if debug and result.traceback:
                    say(result.traceback, err=True)
                raise typer.Exit(1)
            if components.reward_fn is not None and result.reward is not None:
                played.score = result.reward.total
            screen.ending(played)
            yield played


class _Watcher:
    """Prints an episode turn by turn."""

    def __init__(self, screen: Screen, played: Played, setup: Any, delay: float) -> None:
        self.environment: BaseEnvironment | None = None
        self._screen = screen
        self._played = played
        self._setup = setup
        self._delay = delay
        self._num_agents = 0

    def on_start(self, agent: AgentRecord) -> None:
        self._num_agents += 1
        texts: dict[bool, list[str]] = {True: [], False: []}
        for message in agent.messages:
            texts[message["role"] == "system"].append(str(message["content"]))
        rules, observation = ("\n\n".join(texts[is_system]) for is_system in (True, False))
        assert self.environment is not None
        has_tools = self._setup.tools is not None or bool(marked_tools(self.environment))
        limit = turn_limit(self.environment, self._setup.limits, has_tools)
        self._screen.start(self._played, rules.strip(), observation, limit)
        time.sleep(self._delay)

    def on_turn(self, agent: AgentRecord, turn: TurnRecord) -> None:
        from turnwise.tools import answer_of
        from turnwise.tools.thoughts import thought_of

        answer = answer_of(turn.text, in_thought=turn.in_thought)
        is_alone = self._num_agents == 1 and agent.name == "agent"
        self._screen.action(
            answer.strip() or "(nothing)",
            thought=thought_of(turn.text, in_thought=turn.in_thought),
            who="" if is_alone else agent.name,
        )
        trajectory = self._played.trajectory
        trajectory.actions.append(turn.text)
        trajectory.rewards.append(turn.reward)
        trajectory.infos.append(turn.info)
        self._played.calls.append(turn.calls)
        step = StepResult(turn.observation, turn.reward, turn.done, False, turn.info)
        self._screen.turn(step, turn.calls)
        time.sleep(self._delay)
