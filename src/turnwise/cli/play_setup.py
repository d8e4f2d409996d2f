"""Resolves the arguments of `turnwise play`: the environment, its settings, and the player."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from turnwise.cli.common import say, working
from turnwise.cli.play_loop import Chooser, Played, Rules, play_episode
from turnwise.cli.run_paths import find_run_or_refuse
from turnwise.cli.run_settings import Supplied, load_player, played_settings, source_of
from turnwise.config import ConfigStore
from turnwise.env.base import BaseEnvironment
from turnwise.env.catalog import EnvironmentFactory, environment_factory
from turnwise.env.players import expert_player, random_player
from turnwise.errors import ConfigError
from turnwise.tools.base import marked_tools
from turnwise.user_code import settings_from

if TYPE_CHECKING:
    from turnwise.cli.agents import AgentMaker
    from turnwise.cli.play_screen import Screen
    from turnwise.models import LoadedModel

WITHOUT_MODEL = ("human", "expert", "random")
"""Players that need neither a model nor torch, and start at once."""


@dataclass(frozen=True)
class PlaySetup:
    """The environment, the player, and the runs that they are from."""

    name: str
    """The name on the screen."""
    player: str
    environment_run: Path | None
    """The run or checkpoint whose environment is played; None: another environment."""
    player_run: Path | None
    """The run or checkpoint that plays."""
    checkpoint: str
    supplied: Supplied
    trust_remote_code: bool

    @contextlib.contextmanager
    def settings(self) -> Iterator[ConfigStore]:
        """Yield the settings; inside of the context, the code that they name may run."""
        agent = self.player if self._is_function else None
        self.supplied.allow_code(agent)
        source = self.environment_run or self.player_run
        with settings_from(source, is_trusted=self.trust_remote_code):
            with working(f"loading {self.name}"):
                config = played_settings(source, self.supplied)
            yield config

    @property
    def is_bare(self) -> bool:
        """Whether there is only an environment, without other components."""
        named = dataclasses.replace(self.supplied, environment=None, param=None, max_steps=None)
        return self.environment_run is None and named == Supplied()

    @property
    def _is_function(self) -> bool:
        is_other = self.player in WITHOUT_MODEL or self.player_run is not None
        return not is_other and ".py:" in self.player

    def load_player(
        self, config: ConfigStore
    ) -> tuple[LoadedModel, AgentMaker | None, ConfigStore]:
        """Return the model or the agent that plays, and the settings with those of its model."""
        from turnwise.cli.agents import agent_by_name
        from turnwise.models import LoadedModel
        from turnwise.trainer.state import load_configured_tokenizer

        if self._is_function:
            tokenizer = load_configured_tokenizer(config)
            return LoadedModel(None, tokenizer), agent_by_name(self.player), config
        run, model, trust = self.player_run, self.supplied.model, self.trust_remote_code
        loaded, own = load_player(self.player, run, self.checkpoint, config, model, trust)
        config.model, config.inference = own.model, own.inference
        return loaded, None, config


def find_setup(
    env: str | None,
    player: str,
    checkpoint: str,
    supplied: Supplied,
    trust_remote_code: bool,
) -> PlaySetup:
    """Return the setup that the arguments name; raise `ConfigError` if they contradict."""
    environment_run = None if env is None else find_run_or_refuse(env)
    player_run = None
    if player not in WITHOUT_MODEL:
        player_run = source_of(player, checkpoint) or find_run_or_refuse(player)
    if env is not None and environment_run is None:
        if supplied.environment is not None:
            raise ConfigError(
                f"got the environment {env} and --env {supplied.environment}. Name one of them; "
                "--env is for a run whose own environment cannot be restored."
            )
        supplied = dataclasses.replace(supplied, environment=env)
    if env is None:
        if player_run is None:
            raise ConfigError(
                "no environment is named. Name one (turnwise play guess-number) or a "
                "run: turnwise play runs/mine, turnwise play --player runs/mine"
            )
        environment_run = player_run
    name = player if env is None else env
    runs = environment_run, player_run
    return PlaySetup(name, player, *runs, checkpoint, supplied, trust_remote_code)


def play_scripted(
    config: ConfigStore, setup: PlaySetup, seeds: Sequence[int], screen: Screen, delay: float
) -> Iterator[Played]:
    """Play one episode per seed by a person, the expert or the random player."""
    with contextlib.ExitStack() as closing:
        if setup.is_bare:
            factory = environment_factory(config.environment.name, config.environment)
            rules = Rules()
        else:
            factory, rules = _with_components(config, closing)
        choose = _chooser(setup.player, screen, seeds[0], delay)
        for seed in seeds:
            yield play_episode(factory(), choose, seed, screen, rules)


def watch(
    config: ConfigStore,
    setup: PlaySetup,
    seeds: Sequence[int],
    screen: Screen,
    delay: float,
    is_greedy: bool,
    debug: bool,
) -> Iterator[Played]:
    """Play one episode per seed by a model, or by a function of the user."""
    with working(f"loading {setup.player}"):
        from turnwise.cli.play_model import ModelPlayer, play_model
        from turnwise.trainer.components import UserComponents

        loaded, agent, config = setup.load_player(config)
        parts = UserComponents().filled_from(config)
    rules = Rules(limits=parts.limits, rows=parts.eval_rows)
    who = ModelPlayer(loaded, agent, is_greedy, delay)
    for played, result in play_model(who, config, parts, rules, seeds, screen):
        if result.status.is_error:
            screen.failed(str(result.error))
            if debug and result.traceback:
                say(result.traceback, err=True)
            raise typer.Exit(1)
        yield played


def _with_components(
    config: ConfigStore, closing: contextlib.ExitStack
) -> tuple[EnvironmentFactory, Rules]:
    """Return the environment, and the tools, parser, limits and reward of a run."""
    from turnwise.trainer.components import UserComponents

    parts = UserComponents().filled_from(config)
    factory = parts.factory(config)
    rules = Rules(
        parts.registry(config, closing),
        parts.parser or "auto",
        parts.system_prompt or "",
        parts.limits,
        reward_fn=parts.reward_fn,
        rows=parts.eval_rows,
    )
    has_tools = rules.tools is not None or bool(marked_tools(factory()))
    if not has_tools or rules.parser != "auto":
        return factory, rules
    # The parser `auto` follows the chat template of the run's model.
    from turnwise.episode.messages import MessageBuilder
    from turnwise.episode.setup import format_for
    from turnwise.inference import ScriptedEngine
    from turnwise.trainer.state import load_configured_tokenizer

    engine = ScriptedEngine(load_configured_tokenizer(config))
    chat = format_for(engine, config.inference.enable_thinking)
    return factory, dataclasses.replace(rules, messages=MessageBuilder(chat))


def _chooser(player: str, screen: Screen, seed: int, delay: float) -> Chooser:
    if player == "human":
        return screen.ask
    scripted = expert_player if player == "expert" else random_player(seed)

    def choose(env: BaseEnvironment) -> str:
        time.sleep(delay)
        action = scripted(env, "")
        assert isinstance(action, str)
        screen.action(action)
        return action

    return choose
