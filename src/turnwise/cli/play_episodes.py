"""Plays the episodes of `turnwise play`: by a person or a script, by a model or a function.

A person or a script in an environment alone needs no torch, which takes seconds to import.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence
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
from turnwise.env.players import Player, ending_of, expert_player, random_player
from turnwise.tools import ToolCall, ToolDefinition, ToolRegistry, answer_of, get_parser
from turnwise.tools.base import marked_tools
from turnwise.tools.thoughts import thought_of
from turnwise.types import StepResult, Trajectory

if TYPE_CHECKING:
    from turnwise.cli.play_screen import Screen
    from turnwise.episode import EpisodeResult
    from turnwise.episode.options import EpisodeSetup
    from turnwise.episode.types import AgentRecord, TurnRecord

WITHOUT_MODEL = ("human", "expert", "random")


@dataclass(frozen=True)
class PlayOptions:
    """Who plays, and how."""

    player: str
    run: Path | None
    """The run or checkpoint that plays; None: a model, `file.py:function`, or without a model."""
    checkpoint: str
    model: str | None
    is_greedy: bool
    delay: float
    debug: bool
    trust_remote_code: bool


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

    def add(
        self, action: str, reward: float, info: dict[str, Any], calls: Sequence[ToolCall] = ()
    ) -> None:
        self.trajectory.actions.append(action)
        self.trajectory.rewards.append(reward)
        self.trajectory.infos.append(info)
        self.calls.append(calls)


def _play_bare(
    env: BaseEnvironment, player: Player | None, seed: int, screen: Screen, delay: float
) -> Played:
    """Play one episode in an environment without tools; None is a person. Exceptions propagate.

    The event loop runs only while the environment is called, so that Ctrl-C reaches `input`.
    """
    played = Played(Trajectory(seed=seed))
    with contextlib.closing(env), contextlib.closing(asyncio.new_event_loop()) as loop:
        observation = loop.run_until_complete(reset_environment(env, seed))
        screen.start(played, env.get_prompt_prefix().strip(), observation, env.max_steps)
        is_over = False
        while not is_over:
            if player is None:
                action = screen.ask(env)
            else:
                time.sleep(delay)
                action = str(player(env, observation))
                screen.action(action)
            step = loop.run_until_complete(step_environment(env, action))
            played.add(action, step.reward, step.info)
            screen.turn(step)
            observation, is_over = step.observation, step.done
        played.trajectory.status = ending_of(step)
    screen.ending(played)
    return played


def play_episodes(
    config: ConfigStore, options: PlayOptions, seeds: Sequence[int], screen: Screen, is_bare: bool
) -> Iterator[Played]:
    """Play one episode per seed. `is_bare`: there is only an environment."""
    if is_bare and options.player in WITHOUT_MODEL:
        make = environment_factory(config.environment.name, config.environment)
        env = make()
        if not marked_tools(env):
            scripted = {"expert": expert_player, "random": random_player(seeds[0])}
            player = scripted.get(options.player)
            for number, seed in enumerate(seeds):
                env = make() if number else env
                yield _play_bare(env, player, seed, screen, options.delay)
            return
        env.close()
    with working(f"loading {options.player}"):
        from turnwise.cli.agents import agent_by_name
        from turnwise.cli.eval_episodes import engine_for
        from turnwise.episode import Episode, EpisodeCollector
        from turnwise.episode.player_engine import player_episode
        from turnwise.episode.types import EpisodeTask
        from turnwise.models import LoadedModel
        from turnwise.trainer.components import UserComponents
        from turnwise.trainer.evaluation import GREEDY
        from turnwise.trainer.state import load_configured_tokenizer, use_model
        from turnwise.trainer.stopping import StopRequest, run_unless_stopped

        is_human = options.player == "human"
        is_function = options.run is None and ".py:" in options.player
        agent = None
        if options.player in WITHOUT_MODEL or is_function:
            if options.model is not None:
                use_model(config, options.model)
            loaded = LoadedModel(None, load_configured_tokenizer(config))
            agent = None if is_human else agent_by_name(options.player)
        else:
            loaded = load_player(
                options.player,
                options.run,
                options.checkpoint,
                config,
                options.model,
                options.trust_remote_code,
            )
        components = UserComponents().filled_from(config)
        factory = components.factory(config)
        rows = components.eval_rows
    with contextlib.ExitStack() as closing:
        engine = closing.enter_context(engine_for(loaded))
        episode_options = components.episode_options(config, closing)
        if options.is_greedy:
            episode_options = dataclasses.replace(episode_options, sampling=GREEDY)
        collector = EpisodeCollector(engine, factory, episode_options)
        setup = collector.setup
        if options.player in WITHOUT_MODEL:  # a person takes time, and has no tokens
            limits = dataclasses.replace(
                setup.limits,
                max_seconds=None,
                generation_timeout=None,
                max_tokens=None,
                max_context_tokens=None,
            )
            setup = dataclasses.replace(setup, limits=limits)

        def ask(env: BaseEnvironment, observation: str) -> str:
            parser = setup.parser
            definitions: Sequence[ToolDefinition] = ()
            if setup.tools is not None or marked_tools(env):
                definitions = (setup.tools or ToolRegistry()).bind(env).definitions
            if isinstance(parser, str):
                parser = get_parser(parser, template=setup.chat.template, definitions=definitions)
            try:
                return screen.ask(env, definitions, parser)
            except EOFError:
                # As Ctrl-C, since an episode records other exceptions of a player as failures.
                raise KeyboardInterrupt from None

        async def play(task: EpisodeTask, watcher: _Watcher) -> EpisodeResult:
            def make() -> BaseEnvironment:
                watcher.environment = factory()
                return watcher.environment

            if is_human:
                episode = player_episode(setup, make, ask, task, watcher)
            elif agent is not None:
                episode = player_episode(setup, make, agent(task.seed, 0), task, watcher)
            else:
                episode = Episode(setup.in_this_loop(), make, task, watcher=watcher)
            result = await episode.run()
            await collector.score_together([result])
            return result

        stop = StopRequest(lambda text: None)
        if not is_human:
            closing.enter_context(stop.listening(config.inference.stall_timeout))
        for seed in seeds:
            played = Played(Trajectory(seed=seed))
            if rows:
                played.row = seed % len(rows)
                played.trajectory.task = dict(rows[played.row])
            task = EpisodeTask(seed, task=played.trajectory.task)
            playing = play(task, _Watcher(screen, played, setup, options))
            if is_human:  # in this thread, where Ctrl-C reaches `input`
                with asyncio.Runner() as runner:  # which ends what Ctrl-C leaves suspended
                    result = runner.get_loop().run_until_complete(playing)
            else:
                result = run_unless_stopped(playing, stop)
            played.trajectory.status = result.status
            if result.status.is_error:
                screen.failed(str(result.error))
                if options.debug and result.traceback:
                    say(result.traceback, err=True)
                raise typer.Exit(1)
            if components.reward_fn is not None and result.reward is not None:
                played.score = result.reward.total
            screen.ending(played)
            yield played


class _Watcher:
    """Prints an episode turn by turn."""

    def __init__(
        self, screen: Screen, played: Played, setup: EpisodeSetup, options: PlayOptions
    ) -> None:
        self.environment: BaseEnvironment | None = None
        self._screen = screen
        self._played = played
        self._setup = setup
        self._options = options
        self._num_agents = 0

    def on_start(self, agent: AgentRecord) -> None:
        self._num_agents += 1
        texts: dict[bool, list[str]] = {True: [], False: []}
        for message in agent.messages:
            texts[message["role"] == "system"].append(str(message["content"]))
        if self._options.player in WITHOUT_MODEL:  # without a description of tools for a model
            prefix, observation = agent.trajectory.prompts
            texts = {True: [self._setup.system_prompt, prefix.strip()], False: [observation]}
        rules, observation = ("\n\n".join(filter(None, texts[part])) for part in (True, False))
        env = self.environment
        assert env is not None
        has_tools = self._setup.tools is not None or bool(marked_tools(env))
        limit = self._setup.limits.turn_limit(env.max_steps, has_tools=has_tools)
        if not has_tools:  # a turn that calls tools is not a step
            limit = min(env.max_steps, limit)
        self._screen.start(self._played, rules.strip(), observation, limit)
        time.sleep(self._options.delay)

    def on_turn(self, agent: AgentRecord, turn: TurnRecord) -> None:
        is_alone = self._num_agents == 1 and agent.name == "agent"
        if self._options.player != "human":
            self._screen.action(
                answer_of(turn.text, in_thought=turn.in_thought).strip() or "(nothing)",
                thought=thought_of(turn.text, in_thought=turn.in_thought),
                who="" if is_alone else agent.name,
            )
        self._played.add(turn.text, turn.reward, turn.info, turn.calls)
        step = StepResult(turn.observation, turn.reward, turn.done, False, turn.info)
        self._screen.turn(step, turn.calls)
        time.sleep(self._options.delay)
