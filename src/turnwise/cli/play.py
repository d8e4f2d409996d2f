"""`turnwise play`: plays episodes in the terminal, or shows a trained agent playing.

A person or a script in an environment alone needs no torch, which takes seconds to import.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import random
import shlex
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from turnwise.cli import options as opt
from turnwise.cli.common import make_console, print_json, read_line, say, working
from turnwise.cli.run_paths import find_source
from turnwise.cli.settings import Overrides, open_settings
from turnwise.config import ConfigStore
from turnwise.env.base import BaseEnvironment
from turnwise.env.catalog import environment_factory
from turnwise.env.checker.harness import explain
from turnwise.env.driver import reset_environment, step_environment
from turnwise.env.players import Player, expert_player, final_status, random_player
from turnwise.errors import ConfigError, TurnwiseError, did_you_mean
from turnwise.progress.lines import count
from turnwise.tools import (
    ActionParser,
    ToolCall,
    ToolDefinition,
    ToolRegistry,
    answer_of,
    get_parser,
)
from turnwise.tools.thoughts import read_thought
from turnwise.types import StepResult, Trajectory
from turnwise.user_code import settings_from

if TYPE_CHECKING:
    from turnwise.episode import EpisodeResult
    from turnwise.episode.options import EpisodeSetup
    from turnwise.episode.types import AgentRecord, TurnRecord

WITHOUT_MODEL = ("human", "expert", "random")
HELP = (
    "? shows the state and this help, hint the expert's action, quit exits (so do Ctrl-C, Ctrl-D). "
    "To send one of these words to the environment, put = before it: =quit"
)


def play(
    ctx: typer.Context,
    env_or_run: Annotated[
        str | None,
        opt.argument("[ENV_OR_RUN]", opt.ENV_OR_RUN, "the environment of the run that plays"),
    ] = None,
    player: Annotated[
        str,
        opt.option(
            "human, expert, random; the folder of a run or a checkpoint; a model; or FILE.PY:NAME, "
            "a function from the observation to the action.",
            "WHO",
        ),
    ] = "human",
    seed: opt.SeedOption = None,
    episodes: Annotated[int, opt.option("Number of episodes.", min=1)] = 1,
    max_steps: opt.MaxSteps = None,
    param: opt.Parameters = None,
    env: opt.EnvironmentOption = None,
    reward: opt.RewardOption = None,
    dataset: opt.DatasetOption = None,
    tool: opt.ToolOption = None,
    parser: opt.ParserOption = None,
    system_prompt: opt.SystemPromptOption = None,
    model: opt.ModelOption = None,
    part: opt.PartOption = None,
    checkpoint: opt.CheckpointOption = "last",
    greedy: opt.GreedyOption = True,
    delay: Annotated[float, opt.option("Pause before each action.", "SECONDS", min=0)] = 0.0,
    trust_remote_code: opt.TrustRemoteCode = False,
    as_json: opt.AsJson = False,
) -> None:
    """Play an environment in the terminal, or watch a trained agent or a scripted player.

    In the game, [bold]?[/bold] shows the state, [bold]hint[/bold] shows the expert's action,
    [bold]/tool name=value[/bold] calls a tool and [bold]quit[/bold] exits.

    [bold]Examples[/bold]

    turnwise play guess-number
    turnwise play --player runs/mine
    turnwise play grid-world --player expert --delay 0.5
    turnwise play my_env.py:MyEnvironment --player random --episodes 100
    turnwise play gym:FrozenLake-v1 --param map_name=8x8 --seed 7
    turnwise play grid-world --player expert --episodes 10 --json | jq .reward
    """
    if as_json and player == "human":
        raise ConfigError("--json is not for a human: name --player expert, random or a run")
    env_run = find_source(env_or_run)
    player_run = None if player in WITHOUT_MODEL else find_source(player, checkpoint)
    overrides = Overrides.typed(ctx.params)
    # Only an environment, without other components: nothing imports torch.
    plain = Overrides(env=env, param=param, max_steps=max_steps)
    is_bare = env_run is None and overrides == plain
    if env_or_run is None and player_run is None:
        raise ConfigError(
            "no environment is named. Name one, or a run: turnwise play guess-number, "
            "turnwise play runs/mine, turnwise play --player runs/mine"
        )
    if env_or_run is None:
        env_run = player_run
    elif env_run is None:
        if env is not None:
            raise ConfigError(
                f"got the environment {env_or_run} and --env {env}, which is for runs. Name one."
            )
        overrides = dataclasses.replace(overrides, env=env_or_run)
    overrides.allow_code(player)
    name = env_or_run or player
    screen = Screen(name, player, delay, player != "human" and episodes > 1, as_json)
    first_seed = random.randrange(10_000) if seed is None else seed
    played: list[Played] = []
    try:
        source = env_run or player_run
        with settings_from(source, is_trusted=trust_remote_code):
            with working(f"loading {name}"):
                config = open_settings(source, overrides, is_checked=source is not None)
            if env_run is not None:
                screen.name = f"{config.environment.name} of {name}"
            seeds = range(first_seed, first_seed + episodes)
            for episode in play_episodes(
                config,
                screen,
                seeds,
                player_run,
                is_bare=is_bare,
                base_model=model,
                is_greedy=greedy is not False,
                trust_remote_code=trust_remote_code,
            ):
                played.append(episode)
                if as_json:
                    print_json(episode.to_json(), indent=None)
    except (KeyboardInterrupt, EOFError):
        screen.left()
    except (TurnwiseError, typer.Exit):
        raise
    except Exception as error:  # raised by the user's environment: print it without a traceback
        screen.failed(explain(error))
        raise typer.Exit(1) from None
    if episodes > 1 and played:
        screen.summary(played)


def play_episodes(
    config: ConfigStore,
    screen: Screen,
    seeds: Sequence[int],
    run: Path | None,
    *,
    is_bare: bool,
    base_model: str | None,
    is_greedy: bool,
    trust_remote_code: bool,
) -> Iterator[Played]:
    """Play one episode per seed, by `run` if it is one; `is_bare`: there is only an environment."""
    player = screen.player
    if is_bare and player in WITHOUT_MODEL:
        make = environment_factory(config.environment.name, config.environment)
        env = make()
        if not env.get_tools():
            scripted = {"expert": expert_player, "random": random_player(seeds[0])}
            for number, seed in enumerate(seeds):
                yield _play_bare(make() if number else env, scripted.get(player), seed, screen)
            return
        env.close()
    with working(f"loading {player}"):
        from turnwise.cli.agents import agent_by_name, load_players, open_collector
        from turnwise.episode import Episode
        from turnwise.episode.player_engine import player_episode
        from turnwise.episode.types import EpisodeTask
        from turnwise.trainer.components import UserComponents
        from turnwise.trainer.stopping import StopRequest, run_unless_stopped

        has_model = player not in WITHOUT_MODEL and (run is not None or ".py:" not in player)
        players = load_players(
            player if has_model else None,
            run,
            config,
            base_model=base_model,
            trust_remote_code=trust_remote_code,
        )
        agent = None if has_model or player == "human" else agent_by_name(player)
        components = UserComponents().filled_from(config)
        factory, rows = components.factory(config), components.eval_rows
    with contextlib.ExitStack() as closing:
        collector = open_collector(
            config, components, factory, players, closing, is_greedy=is_greedy
        )
        setup = collector.setup
        if player in WITHOUT_MODEL:  # a person takes time, and has no tokens
            unlimited = ("max_seconds", "generation_timeout", "max_tokens", "max_context_tokens")
            limits = dataclasses.replace(setup.limits, **dict.fromkeys(unlimited))
            setup = setup.replaced(limits=limits)
        screen.setup = setup

        def ask(env: BaseEnvironment, observation: str) -> str:
            parser = setup.parser
            definitions = (setup.tools or ToolRegistry()).bind(env).definitions
            if isinstance(parser, str):
                parser = get_parser(parser, template=setup.chat.template, definitions=definitions)
            try:
                return screen.ask(env, definitions, parser)
            except EOFError:
                # As Ctrl-C, since an episode records other exceptions of a player as failures.
                raise KeyboardInterrupt from None

        async def play(task: EpisodeTask) -> EpisodeResult:
            def make() -> BaseEnvironment:
                screen.environment = factory()
                return screen.environment

            if has_model:
                episode = Episode(setup.in_this_loop(), make, task, watcher=screen)
            else:
                who = ask if agent is None else agent(task.seed, 0)
                episode = player_episode(setup, make, who, task, screen)
            result = await episode.run()
            await collector.score_together([result])
            return result

        stop = StopRequest(lambda text: None)
        if player != "human":
            closing.enter_context(stop.listening(config.inference.stall_timeout))
        for seed in seeds:
            played = screen.played = Played(seed=seed)
            if rows:
                played.row = seed % len(rows)
                played.task = dict(rows[played.row])
            playing = play(EpisodeTask(seed, task=played.task))
            if player == "human":  # in this thread, where Ctrl-C reaches `input`
                with asyncio.Runner() as runner:  # which ends what Ctrl-C leaves suspended
                    result = runner.get_loop().run_until_complete(playing)
            else:
                result = run_unless_stopped(playing, stop)
            played.status = result.status
            if result.status.is_error:
                screen.failed(str(result.error))
                raise typer.Exit(1)
            if components.reward_fn is not None and result.reward is not None:
                played.score = result.reward.total
            screen.ending()
            yield played


def _play_bare(env: BaseEnvironment, player: Player | None, seed: int, screen: Screen) -> Played:
    """Play one episode in an environment without tools; None is a person. Exceptions propagate."""
    # The event loop runs only while the environment is called, so that Ctrl-C reaches `input`.
    played = screen.played = Played(seed=seed)
    with contextlib.closing(env), contextlib.closing(asyncio.new_event_loop()) as loop:
        observation = loop.run_until_complete(reset_environment(env, seed))
        screen.start(env.get_prompt_prefix().strip(), observation, env.max_steps)
        is_over = False
        while not is_over:
            if player is None:
                action = screen.ask(env)
            else:
                time.sleep(screen.delay)
                screen.action(action := str(player(env, observation)))
            step = loop.run_until_complete(step_environment(env, action))
            screen.turn(action, step)
            observation, is_over = step.observation, step.done
        played.status = final_status(step)
    screen.ending()
    return played


@dataclass
class Played(Trajectory):
    """An episode, as it is printed."""

    row: int | None = None
    """The row of the dataset, from 0."""
    calls: list[Sequence[ToolCall]] = field(default_factory=list)
    """The tool calls of each turn."""
    score: float | None = None
    """The reward by the run's reward function; None: there is none."""

    def to_json(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        turns: list[dict[str, Any]] = []
        columns = (self.actions, self.rewards, self.infos, self.calls)
        for action, reward, info, calls in zip(*columns, strict=True):
            turns.append({"action": action, "reward": reward, "info": info})
            if calls:
                names = ("name", "arguments", "success", "result")
                turns[-1]["calls"] = [{n: getattr(call, n) for n in names} for call in calls]
        ending = {name: getattr(self, name) for name in ("seed", "row", "status", "success")}
        ending |= {"reward": self.total_reward, "score": self.score}
        return {name: v for name, v in ending.items() if v is not None} | {"turns": turns}


@dataclass(eq=False)
class Screen:
    """Prints episodes turn by turn, or one line per episode if `is_brief`."""

    name: str
    player: str
    delay: float
    is_brief: bool
    is_quiet: bool
    played: Played = field(default_factory=Played)
    """The current episode."""
    environment: BaseEnvironment = field(init=False)
    setup: EpisodeSetup = field(init=False)
    """What episodes are played with, unless there is only an environment."""

    def __post_init__(self) -> None:
        self._results = make_console(quiet=self.is_quiet)
        self._turns = make_console(quiet=self.is_quiet or self.is_brief)

    def on_start(self, agent: AgentRecord) -> None:
        """Print the beginning of an episode that is played like a model's."""
        env, setup = self.environment, self.setup
        if self.player in WITHOUT_MODEL:  # without a description of tools for a model
            prefix, observation = agent.trajectory.prompts
            rules = [setup.system_prompt, prefix.strip()]
        else:
            rules = [str(m["content"]) for m in agent.messages if m["role"] == "system"]
            others = [str(m["content"]) for m in agent.messages if m["role"] != "system"]
            observation = "\n\n".join(filter(None, others))
        has_tools = setup.tools is not None or bool(env.get_tools())
        limit = setup.limits.turn_limit(env.max_steps, has_tools=has_tools)
        self.start("\n\n".join(filter(None, rules)).strip(), observation, limit)
        time.sleep(self.delay)

    def on_turn(self, agent: AgentRecord, turn: TurnRecord) -> None:
        """Print a turn of an episode that is played like a model's."""
        if self.player != "human":
            self.action(
                answer_of(turn.text, in_thought=turn.in_thought).strip() or "(nothing)",
                thought=read_thought(turn.text, in_thought=turn.in_thought),
                who="" if agent.name == "agent" else f"{agent.name} ",
            )
        step = StepResult(turn.observation, turn.reward, turn.done, False, turn.info)
        self.turn(turn.text, step, turn.calls)
        time.sleep(self.delay)

    def start(self, rules: str, observation: str, max_turns: int) -> None:
        row = self.played.row
        task = "" if row is None else f", row {row + 1} of the dataset"
        facts = f"seed {self.played.seed}{task}, at most {count(max_turns, 'turn')}"
        self._print((self.name, "bold"), (f"  {facts}", "dim"))
        if rules:
            self._print(("system prompt: ", "bold"), rules)
        self._print(f"\n{observation}\n")

    def ask(
        self,
        env: BaseEnvironment,
        definitions: Sequence[ToolDefinition] = (),
        parser: ActionParser | None = None,
    ) -> str:
        """Return the next action that the person types; `parser` reads the calls of tools."""
        lines = [f"  /{_usage(tool)}  {tool.description}".rstrip() for tool in definitions]
        tools = "\n".join(["tools:", *lines, ""]) if lines else ""
        if not self.played.calls:
            self._print((f"{tools}(? for help, quit to exit)", "dim"))
        while True:
            line = read_line(self._prompt)
            if not sys.stdin.isatty():
                self._print(line)  # a transcript of piped input shows it
            word = line.strip()
            if word == "quit":
                raise EOFError
            if word == "?":
                self._print(env.get_state_description())
                self._print((f"{HELP}\n{tools}".rstrip(), "dim"))
            elif word == "hint":
                self._print((env.expert_action() or "This environment has no expert.", "cyan"))
            elif word.startswith("/") and definitions and parser is not None:
                try:
                    return parser.render(_tool_call(word, definitions))
                except ConfigError as error:
                    self._print((f"{error} As an action: ={word}", "yellow"))
            elif word:
                return line.removeprefix("=")

    def action(self, action: str, *, thought: str = "", who: str = "") -> None:
        """Print a player's action, and dimmed its thought before it."""
        number = self._prompt
        if thought:
            self._print(number, (who, "bold"), (thought, "dim italic"))
            number, who = " " * len(number), ""
        self._print(number, (who, "bold"), (action, "cyan"))

    def turn(self, action: str, result: StepResult, calls: Sequence[ToolCall] = ()) -> None:
        """Record a turn; print the results of its tool calls or its observation, and the reward."""
        self.played.actions.append(action)
        self.played.rewards.append(result.reward)
        self.played.infos.append(result.info)
        self.played.calls.append(calls)
        for call in calls:
            given = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
            style = "magenta" if call.success else "red"
            self._print((f"  {call.name}({given}) -> ", style), str(call.result))
        if result.observation and not (calls and all(call.result is not None for call in calls)):
            self._print(result.observation)
        reward = result.reward
        style = "green" if reward > 0 else "red" if reward < 0 else "dim"
        invalid = "  (invalid action)" if result.info.get("invalid_action") else ""
        number = f"{reward:+.4g}" if reward else "0"
        self._print((f"  reward {number}", style), (invalid, "yellow"))

    def ending(self) -> None:
        """Print how the episode ended."""
        played, verdict, style = self.played, "Finished", "bold"
        if played.reports_success:
            verdict = "Solved" if played.success else "Not solved"
            style = "bold green" if played.success else "bold red"
        turns, reward = count(played.num_turns, "turn"), f"{played.total_reward:.4g}"
        score = "" if played.score is None else f"score {played.score:.4g}"
        if self.is_brief:
            seed = f"seed {played.seed}"
            line = f"{seed:<12}{verdict:<14}{turns:<12}reward {reward}  {score}"
            self._results.print(line.rstrip())
        by_function = score and f"{score} by the reward function, "
        status = played.status.value.replace("_", " ")
        ending = f"  {turns}, total reward {reward}, {by_function}{status}"
        self._print("\n", (verdict, style), ending)

    def summary(self, episodes: Sequence[Played]) -> None:
        """Print the means over all episodes."""
        facts = []
        if any(played.reports_success for played in episodes):
            facts.append(f"success {statistics.fmean(played.success for played in episodes):.0%}")
        reward = statistics.fmean(played.total_reward for played in episodes)
        turns = statistics.fmean(played.num_turns for played in episodes)
        facts += [f"mean reward {reward:.4g}", f"mean turns {turns:.1f}"]
        if scores := [played.score for played in episodes if played.score is not None]:
            facts.append(f"mean score {statistics.fmean(scores):.4g}")
        title = f"\n{len(episodes)} episodes by {self.player}: "
        self._results.print(Text(title + ", ".join(facts), "bold"))

    def left(self) -> None:
        """Print how far an episode came that was left."""
        turns, total = count(self.played.num_turns, "turn"), self.played.total_reward
        self._results.print(f"\nStopped after {turns}, total reward {total:.4g}.")

    def failed(self, why: str) -> None:
        """Print why an episode failed."""
        where = f"{self.name} failed in turn {self.played.num_turns + 1}"
        say(f"{where}: {why}\nLook closer with: turnwise check-env", err=True)

    @property
    def _prompt(self) -> str:
        return f"{self.played.num_turns + 1}> "

    def _print(self, *parts: str | tuple[str, str]) -> None:
        self._turns.print(Text.assemble(*parts))


def _tool_call(line: str, definitions: Sequence[ToolDefinition]) -> ToolCall:
    """Return the call of a typed `/tool name=value ...`, or raise `ConfigError`: as an action, it
    would cost a turn."""
    tools = {tool.name: tool for tool in definitions}
    name, *words = [*line[1:].split(maxsplit=1), ""]
    if name not in tools:
        raise ConfigError(f"there is no tool {name!r}. {did_you_mean(name, tools)}")
    arguments: dict[str, Any] = {}
    try:
        for word in shlex.split(words[0]):
            key, value = word.split("=", 1)
            try:
                arguments[key] = json.loads(value)
            except ValueError:
                arguments[key] = value
    except ValueError:
        raise ConfigError(f"got {line}, expected /{_usage(tools[name])}".rstrip()) from None
    return ToolCall(name, arguments)


def _usage(tool: ToolDefinition) -> str:
    """Return a call of a tool as a person types it."""
    names = (tool.parameters or {}).get("properties", {})
    return " ".join([tool.name, *(f"{name}=..." for name in names)])
