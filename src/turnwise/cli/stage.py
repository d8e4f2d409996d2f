"""Where `turnwise play` takes place: which environment, with which rules, and who plays in it."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from turnwise.cli.common import say, working
from turnwise.cli.play_loop import Chooser, Played, Rules, play_episode
from turnwise.cli.run_parts import Supplied, restore, rows_of, settings_of, source_of
from turnwise.cli.run_place import find_run, not_a_run, runs_in
from turnwise.config import ConfigStore
from turnwise.env.base import BaseEnvironment
from turnwise.env.catalog import EnvironmentFactory, environment_factory
from turnwise.env.players import expert_player, random_player
from turnwise.errors import ConfigError
from turnwise.tools.base import marked_tools
from turnwise.user_code import settings_from

if TYPE_CHECKING:
    from turnwise.cli.agents import AgentMaker
    from turnwise.cli.screen import Screen
    from turnwise.models import LoadedModel

IN_THE_TERMINAL = ("human", "expert", "random")
"""Players without a model: they need no torch, and start at once."""


@dataclass(frozen=True)
class Stage:
    """What is played by whom, and whose settings hold."""

    name: str
    """As the screen calls it."""
    player: str
    environment_run: Path | None
    """The run or checkpoint whose environment is played; None: one that is named."""
    player_run: Path | None
    """The run or checkpoint that plays."""
    checkpoint: str
    supplied: Supplied
    trust_remote_code: bool

    @contextlib.contextmanager
    def settings(self) -> Iterator[ConfigStore]:
        """Give the settings; within, the code that they name may be run."""
        agent = self.player if self._is_function else None
        self.supplied.allow_code(agent)
        source = self.environment_run or self.player_run
        with settings_from(source, is_trusted=self.trust_remote_code):
            if source is None:
                config = ConfigStore()
                self.supplied.put_into(config)
            else:
                config = settings_of(source)
                restore(config, source, self.supplied)
            yield config

    @property
    def is_bare(self) -> bool:
        """Whether there is an environment and nothing else."""
        named = dataclasses.replace(self.supplied, environment=None, param=None, max_steps=None)
        return self.environment_run is None and named == Supplied()

    @property
    def _is_function(self) -> bool:
        is_other = self.player in IN_THE_TERMINAL or self.player_run is not None
        return not is_other and ".py:" in self.player

    def load_player(
        self, config: ConfigStore
    ) -> tuple[LoadedModel, AgentMaker | None, ConfigStore]:
        """Return who plays, and the settings with those of its model."""
        from turnwise.cli.agents import agent_by_name
        from turnwise.models import LoadedModel
        from turnwise.trainer.state import (
            load_configured_model,
            load_configured_tokenizer,
            load_trained_model,
        )

        if self._is_function:
            tokenizer = load_configured_tokenizer(config)
            return LoadedModel(None, tokenizer), agent_by_name(self.player), config
        if self.player_run is None:
            config.model.model_name, config.model.local_path = self.player, None
            config.model.trust_remote_code = self.trust_remote_code
            return load_configured_model(config), None, config
        which: Literal["best", "last"] = "best" if self.checkpoint == "best" else "last"
        loaded, own = load_trained_model(
            self.player_run,
            which,
            trust_remote_code=self.trust_remote_code,
            model=self.supplied.model,
        )
        config.model, config.inference = own.model, own.inference
        return loaded, None, config


def find_stage(
    env: str | None,
    player: str,
    checkpoint: str,
    supplied: Supplied,
    trust_remote_code: bool,
) -> Stage:
    """Return what the words of the command mean."""
    player_run = None if player in IN_THE_TERMINAL else source_of(player, checkpoint)
    environment_run = None if env is None else find_run(env)
    if env is not None and environment_run is None:
        if runs_in(Path(env).expanduser()):
            raise not_a_run(env)
        if supplied.environment is not None:
            raise ConfigError(
                f"got the environment {env} and --env {supplied.environment}. Name one of them; "
                "--env is for a run whose own environment cannot be restored."
            )
        supplied = dataclasses.replace(supplied, environment=env)
    if player_run is None and runs_in(Path(player).expanduser()):
        raise not_a_run(player)
    if env is None:
        if player_run is None:
            raise ConfigError(
                "nothing is named to play. Name an environment (turnwise play guess-number) or a "
                "run: turnwise play runs/mine, turnwise play --player runs/mine"
            )
        environment_run = player_run
    name = player if env is None else env
    return Stage(name, player, environment_run, player_run, checkpoint, supplied, trust_remote_code)


def played_here(
    config: ConfigStore, stage: Stage, seeds: Sequence[int], screen: Screen, delay: float
) -> Iterator[Played]:
    """Play one episode for each seed: a person, the expert or the random player."""
    with contextlib.ExitStack() as closing:
        if stage.is_bare:
            factory, rules = (
                environment_factory(config.environment.name, config.environment),
                Rules(),
            )
        else:
            factory, rules = _with_components(config, closing)
        choose = _chooser(stage.player, screen, seeds[0], delay)
        for seed in seeds:
            yield play_episode(factory(), choose, seed, screen, rules)


def watched(
    config: ConfigStore,
    stage: Stage,
    seeds: Sequence[int],
    screen: Screen,
    delay: float,
    is_greedy: bool,
    debug: bool,
) -> Iterator[Played]:
    """Play one episode for each seed: a trained model, or an agent that is a user's function."""
    with working(f"loading {stage.player}"):
        from turnwise.cli.watching import Watched, watch
        from turnwise.trainer.components import UserComponents

        loaded, agent, config = stage.load_player(config)
        parts = UserComponents().filled_from(config)
    rules = Rules(limits=parts.limits, rows=rows_of(parts))
    who = Watched(loaded, agent, is_greedy, delay)
    for played, result in watch(who, config, parts, rules, seeds, screen):
        if result.status.is_error:
            screen.failed(str(result.error))
            if debug and result.traceback:
                say(result.traceback, err=True)
            raise typer.Exit(1)
        yield played


def _with_components(
    config: ConfigStore, closing: contextlib.ExitStack
) -> tuple[EnvironmentFactory, Rules]:
    """The environment with everything that a run has besides it."""
    from turnwise.trainer.components import UserComponents

    parts = UserComponents().filled_from(config)
    factory = parts.factory(config)
    rules = Rules(
        parts.registry(config, closing),
        parts.parser or "auto",
        parts.system_prompt or "",
        parts.limits,
        reward_fn=parts.reward_fn,
        rows=rows_of(parts),
    )
    has_tools = rules.tools is not None or bool(marked_tools(factory()))
    if not has_tools or rules.parser != "auto":
        return factory, rules
    # Calls are written as the chat template of the run's model has it.
    from turnwise.episode.messages import MessageBuilder
    from turnwise.episode.setup import format_for
    from turnwise.inference import ScriptedEngine
    from turnwise.trainer.state import load_configured_tokenizer

    chat = format_for(ScriptedEngine(load_configured_tokenizer(config)))
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
