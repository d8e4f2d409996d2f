"""Plays the episodes of `turnwise play`: by a person or a script, by a model or a function.

A person or a script in an environment alone needs no torch, which takes seconds to import.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from turnwise.cli.common import say, working
from turnwise.cli.play_screen import Played, Screen
from turnwise.config import ConfigStore
from turnwise.env.base import BaseEnvironment
from turnwise.env.catalog import environment_factory
from turnwise.env.driver import reset_environment, step_environment
from turnwise.env.players import Player, ending_of, expert_player, random_player
from turnwise.tools import ToolDefinition, ToolRegistry, answer_of, get_parser
from turnwise.tools.base import marked_tools
from turnwise.tools.thoughts import thought_of
from turnwise.types import StepResult, Trajectory

if TYPE_CHECKING:
    from turnwise.episode import EpisodeResult
    from turnwise.episode.options import EpisodeSetup
    from turnwise.episode.types import AgentRecord, TurnRecord

WITHOUT_MODEL = ("human", "expert", "random")


def play_episodes(
    config: ConfigStore,
    screen: Screen,
    seeds: Sequence[int],
    *,
    run: Path | None,
    checkpoint: str,
    model: str | None,
    is_greedy: bool,
    debug: bool,
    trust_remote_code: bool,
    is_bare: bool,
) -> Iterator[Played]:
    """Play one episode per seed. `run` is the run that plays, if it is one; `is_bare`: there is
    only an environment."""
    player = screen.player
    if is_bare and player in WITHOUT_MODEL:
        make = environment_factory(config.environment.name, config.environment)
        env = make()
        if not marked_tools(env):
            scripted = {"expert": expert_player, "random": random_player(seeds[0])}
            for number, seed in enumerate(seeds):
                yield _play_bare(make() if number else env, scripted.get(player), seed, screen)
            return
        env.close()
    with working(f"loading {player}"):
        from turnwise.cli.agents import agent_by_name, engine_for, load_player
        from turnwise.episode import Episode, EpisodeCollector
        from turnwise.episode.player_engine import player_episode
        from turnwise.episode.types import EpisodeTask
        from turnwise.trainer.components import UserComponents
        from turnwise.trainer.rollout import GREEDY
        from turnwise.trainer.stopping import StopRequest, run_unless_stopped

        is_function = run is None and ".py:" in player
        name = None if player in WITHOUT_MODEL or is_function else player
        loaded = load_player(name, run, checkpoint, config, model, trust_remote_code)
        agent = agent_by_name(player) if name is None and player != "human" else None
        components = UserComponents().filled_from(config)
        factory = components.factory(config)
        rows = components.eval_rows
    with contextlib.ExitStack() as closing:
        engine = closing.enter_context(engine_for(loaded))
        options = components.episode_options(config, closing)
        if is_greedy:
            options = dataclasses.replace(options, sampling=GREEDY)
        collector = EpisodeCollector(engine, factory, options)
        setup = collector.setup
        if player in WITHOUT_MODEL:  # a person takes time, and has no tokens
            limits = dataclasses.replace(
                setup.limits,
                max_seconds=None,
                generation_timeout=None,
                max_tokens=None,
                max_context_tokens=None,
            )
            setup = setup.with_limits(limits)

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

        async def play(task: EpisodeTask) -> EpisodeResult:
            watcher = _Watcher(screen, setup)

            def make() -> BaseEnvironment:
                watcher.environment = factory()
                return watcher.environment

            if player == "human":
                episode = player_episode(setup, make, ask, task, watcher)
            elif agent is not None:
                episode = player_episode(setup, make, agent(task.seed, 0), task, watcher)
            else:
                episode = Episode(setup.in_this_loop(), make, task, watcher=watcher)
            result = await episode.run()
            await collector.score_together([result])
            return result

        stop = StopRequest(lambda text: None)
        if player != "human":
            closing.enter_context(stop.listening(config.inference.stall_timeout))
        for seed in seeds:
            played = screen.played = Played(Trajectory(seed=seed))
            if rows:
                played.row = seed % len(rows)
                played.trajectory.task = dict(rows[played.row])
            playing = play(EpisodeTask(seed, task=played.trajectory.task))
            if player == "human":  # in this thread, where Ctrl-C reaches `input`
                with asyncio.Runner() as runner:  # which ends what Ctrl-C leaves suspended
                    result = runner.get_loop().run_until_complete(playing)
            else:
                result = run_unless_stopped(playing, stop)
            played.trajectory.status = result.status
            if result.status.is_error:
                screen.failed(str(result.error))
                if debug and result.traceback:
                    say(result.traceback, err=True)
                raise typer.Exit(1)
            if components.reward_fn is not None and result.reward is not None:
                played.score = result.reward.total
            screen.ending()
            yield played


def _play_bare(env: BaseEnvironment, player: Player | None, seed: int, screen: Screen) -> Played:
    """Play one episode in an environment without tools; None is a person. Exceptions propagate.

    The event loop runs only while the environment is called, so that Ctrl-C reaches `input`.
    """
    played = screen.played = Played(Trajectory(seed=seed))
    with contextlib.closing(env), contextlib.closing(asyncio.new_event_loop()) as loop:
        observation = loop.run_until_complete(reset_environment(env, seed))
        screen.start(env.get_prompt_prefix().strip(), observation, env.max_steps)
        is_over = False
        while not is_over:
            if player is None:
                action = screen.ask(env)
            else:
                time.sleep(screen.delay)
                action = str(player(env, observation))
                screen.action(action)
            step = loop.run_until_complete(step_environment(env, action))
            screen.turn(action, step)
            observation, is_over = step.observation, step.done
        played.trajectory.status = ending_of(step)
    screen.ending()
    return played


class _Watcher:
    """Prints an episode turn by turn."""

    def __init__(self, screen: Screen, setup: EpisodeSetup) -> None:
        self.environment: BaseEnvironment | None = None
        self._screen, self._setup = screen, setup
        self._num_agents = 0

    def on_start(self, agent: AgentRecord) -> None:
        self._num_agents += 1
        env = self.environment
        assert env is not None
        if self._screen.player in WITHOUT_MODEL:  # without a description of tools for a model
            prefix, observation = agent.trajectory.prompts
            rules = [self._setup.system_prompt, prefix.strip()]
        else:
            rules = [str(m["content"]) for m in agent.messages if m["role"] == "system"]
            others = [str(m["content"]) for m in agent.messages if m["role"] != "system"]
            observation = "\n\n".join(filter(None, others))
        has_tools = self._setup.tools is not None or bool(marked_tools(env))
        limit = self._setup.limits.turn_limit(env.max_steps, has_tools=has_tools)
        if not has_tools:  # a turn that calls tools is not a step
            limit = min(env.max_steps, limit)
        self._screen.start("\n\n".join(filter(None, rules)).strip(), observation, limit)
        time.sleep(self._screen.delay)

    def on_turn(self, agent: AgentRecord, turn: TurnRecord) -> None:
        is_alone = self._num_agents == 1 and agent.name == "agent"
        if self._screen.player != "human":
            self._screen.action(
                answer_of(turn.text, in_thought=turn.in_thought).strip() or "(nothing)",
                thought=thought_of(turn.text, in_thought=turn.in_thought),
                who="" if is_alone else agent.name,
            )
        step = StepResult(turn.observation, turn.reward, turn.done, False, turn.info)
        self._screen.turn(turn.text, step, turn.calls)
        time.sleep(self._screen.delay)
