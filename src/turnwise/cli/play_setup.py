"""Plays the episodes of `turnwise play`: by a person or a script, by a model or a function."""

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
from turnwise.cli.play_loop import Played, Rules, play_episode
from turnwise.cli.run_settings import load_player
from turnwise.config import ConfigStore
from turnwise.env.base import BaseEnvironment
from turnwise.env.catalog import EnvironmentFactory, environment_factory
from turnwise.env.players import expert_player, random_player
from turnwise.tools.base import marked_tools

if TYPE_CHECKING:
    from turnwise.cli.play_screen import Screen


@dataclass(frozen=True)
class PlayerOptions:
    """A model or a function that plays, and how."""

    name: str
    run: Path | None
    """The run or checkpoint that plays; None: a model, or `file.py:function`."""
    checkpoint: str
    model: str | None
    is_greedy: bool
    delay: float
    trust_remote_code: bool


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

    def choose(env: BaseEnvironment) -> str:
        if player == "human":
            return screen.ask(env)
        time.sleep(delay)
        action = scripted(env, "")
        assert isinstance(action, str)
        screen.action(action)
        return action

    with contextlib.ExitStack() as closing:
        if is_bare:
            factory = environment_factory(config.environment.name, config.environment)
            rules = Rules()
        else:
            factory, rules = _with_components(config, closing)
        for seed in seeds:
            yield play_episode(factory(), choose, seed, screen, rules)


def watch(
    config: ConfigStore, who: PlayerOptions, seeds: Sequence[int], screen: Screen, debug: bool
) -> Iterator[Played]:
    """Play one episode per seed by a model, or by a function of the user."""
    with working(f"loading {who.name}"):
        from turnwise.cli.agents import agent_by_name
        from turnwise.cli.play_model import ModelPlayer, play_model
        from turnwise.models import LoadedModel
        from turnwise.trainer.components import UserComponents
        from turnwise.trainer.state import load_configured_tokenizer

        agent = None
        if who.run is None and ".py:" in who.name:
            loaded = LoadedModel(None, load_configured_tokenizer(config))
            agent = agent_by_name(who.name)
        else:
            loaded, trained = load_player(
                who.name, who.run, who.checkpoint, config, who.model, who.trust_remote_code
            )
            config.model, config.inference = trained.model, trained.inference
        parts = UserComponents().filled_from(config)
    rules = Rules(limits=parts.limits, rows=parts.eval_rows)
    player = ModelPlayer(loaded, agent, who.is_greedy, who.delay)
    for played, result in play_model(player, config, parts, rules, seeds, screen):
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
