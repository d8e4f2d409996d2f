"""Plays the episodes of `turnwise play`, and prints them: prompts, observations, rewards, results.

A person or a script in an environment alone needs no torch, which takes seconds to import.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import shlex
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.text import Text

from turnwise.cli.common import legible, make_console, say, working
from turnwise.config import ConfigStore
from turnwise.env.base import BaseEnvironment
from turnwise.env.catalog import environment_factory
from turnwise.env.checker.harness import explain
from turnwise.env.driver import reset_environment, step_environment
from turnwise.env.players import Player, ending_of, expert_player, random_player
from turnwise.errors import ConfigError, did_you_mean
from turnwise.progress.lines import count
from turnwise.tools import (
    ActionParser,
    ToolCall,
    ToolDefinition,
    ToolRegistry,
    answer_of,
    get_parser,
)
from turnwise.tools.base import marked_tools
from turnwise.tools.thoughts import thought_of
from turnwise.types import EpisodeStatus, StepResult, Trajectory

if TYPE_CHECKING:
    from turnwise.episode import EpisodeResult
    from turnwise.episode.options import EpisodeSetup
    from turnwise.episode.types import AgentRecord, TurnRecord

WITHOUT_MODEL = ("human", "expert", "random")
HELP = (
    "? shows the state and this help, hint the expert's action, quit exits (so do Ctrl-C, Ctrl-D). "
    "To send one of these words to the environment, put = before it: =quit"
)
ENDINGS = {
    EpisodeStatus.DONE: "done",
    EpisodeStatus.TRUNCATED_BY_ENVIRONMENT: "cut by the environment",
    EpisodeStatus.TRUNCATED_BY_TURNS: "out of steps",
    EpisodeStatus.TRUNCATED_BY_TOKENS: "out of tokens",
    EpisodeStatus.TRUNCATED_BY_TIME: "out of time",
    EpisodeStatus.TRUNCATED_BY_TOOL_CALLS: "out of tool calls",
}


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
        from turnwise.cli.agents import agent_by_name, engine_for, load_player, load_policies
        from turnwise.episode import Episode, EpisodeCollector
        from turnwise.episode.player_engine import player_episode
        from turnwise.episode.types import EpisodeTask
        from turnwise.trainer.components import UserComponents
        from turnwise.trainer.rollout import GREEDY
        from turnwise.trainer.stopping import StopRequest, run_unless_stopped

        is_function = run is None and ".py:" in player
        name = None if player in WITHOUT_MODEL or is_function else player
        loaded = load_player(name, run, checkpoint, config, model, trust_remote_code)
        policies = load_policies(run, checkpoint, config, trust_remote_code)
        agent = agent_by_name(player) if name is None and player != "human" else None
        components = UserComponents().filled_from(config)
        factory = components.factory(config)
        rows = components.eval_rows
    with contextlib.ExitStack() as closing:
        engine = closing.enter_context(engine_for(loaded))
        options = components.episode_options(config, closing)
        engines = {
            name: closing.enter_context(engine_for(model)) for name, model in policies.items()
        }
        options = dataclasses.replace(options, engines=engines)
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
            def make() -> BaseEnvironment:
                screen.environment = factory()
                return screen.environment

            if player == "human":
                episode = player_episode(setup, make, ask, task, screen)
            elif agent is not None:
                episode = player_episode(setup, make, agent(task.seed, 0), task, screen)
            else:
                episode = Episode(setup.in_this_loop(), make, task, watcher=screen)
            result = await episode.run()
            await collector.score_together([result])
            return result

        stop = StopRequest(lambda text: None)
        if player != "human":
            closing.enter_context(stop.listening(config.inference.stall_timeout))
        for seed in seeds:
            played = screen.begin(seed, setup)
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
    played = screen.begin(seed)
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

    def to_dict(self) -> dict[str, Any]:
        trajectory = self.trajectory
        turns: list[dict[str, Any]] = []
        steps = zip(trajectory.actions, trajectory.rewards, trajectory.infos, strict=True)
        for (action, reward, info), calls in zip(steps, self.calls, strict=True):
            turns.append({"action": action, "reward": reward, "info": info})
            if calls:
                names = ("name", "arguments", "success", "result")
                turns[-1]["calls"] = [{n: getattr(call, n) for n in names} for call in calls]
        return {
            "seed": trajectory.seed,
            **({} if self.row is None else {"row": self.row}),
            "status": trajectory.status,
            "success": trajectory.success,
            "reward": trajectory.total_reward,
            **({} if self.score is None else {"score": self.score}),
            "turns": turns,
        }


class Screen:
    """Prints episodes turn by turn, or one line per episode if `is_brief`."""

    def __init__(
        self, console: Console, name: str, player: str, delay: float, is_brief: bool
    ) -> None:
        self.console = console
        self.name = name
        self.player = player
        self.delay = delay
        self.is_brief = is_brief
        self.played = Played(Trajectory())
        """The current episode."""
        self.environment: BaseEnvironment | None = None
        self.setup: EpisodeSetup | None = None
        """What the current episode is played with; None: only an environment."""
        self._num_agents = 0

    def begin(self, seed: int, setup: EpisodeSetup | None = None) -> Played:
        """Return the record of a new episode."""
        self.setup, self._num_agents = setup, 0
        self.played = Played(Trajectory(seed=seed))
        return self.played

    def on_start(self, agent: AgentRecord) -> None:
        self._num_agents += 1
        env, setup = self.environment, self.setup
        assert env is not None
        assert setup is not None
        if self.player in WITHOUT_MODEL:  # without a description of tools for a model
            prefix, observation = agent.trajectory.prompts
            rules = [setup.system_prompt, prefix.strip()]
        else:
            rules = [str(m["content"]) for m in agent.messages if m["role"] == "system"]
            others = [str(m["content"]) for m in agent.messages if m["role"] != "system"]
            observation = "\n\n".join(filter(None, others))
        has_tools = setup.tools is not None or bool(marked_tools(env))
        limit = setup.limits.turn_limit(env.max_steps, has_tools=has_tools)
        if not has_tools:  # a turn that calls tools is not a step
            limit = min(env.max_steps, limit)
        self.start("\n\n".join(filter(None, rules)).strip(), observation, limit)
        time.sleep(self.delay)

    def on_turn(self, agent: AgentRecord, turn: TurnRecord) -> None:
        is_alone = self._num_agents == 1 and agent.name == "agent"
        if self.player != "human":
            self.action(
                answer_of(turn.text, in_thought=turn.in_thought).strip() or "(nothing)",
                thought=thought_of(turn.text, in_thought=turn.in_thought),
                who="" if is_alone else agent.name,
            )
        step = StepResult(turn.observation, turn.reward, turn.done, False, turn.info)
        self.turn(turn.text, step, turn.calls)
        time.sleep(self.delay)

    def start(self, rules: str, observation: str, max_turns: int) -> None:
        if self.is_brief:
            return
        facts = [f"seed {self.played.trajectory.seed}"]
        if self.played.row is not None:
            facts.append(f"row {self.played.row + 1} of the dataset")
        facts.append(f"at most {count(max_turns, 'turn')}")
        self._print(Text.assemble((self.name, "bold"), (f"  {', '.join(facts)}", "dim")))
        if rules:
            self._print(Text.assemble(("system prompt: ", "bold"), rules))
        self._print(Text(f"\n{observation}\n"))

    def ask(
        self,
        env: BaseEnvironment,
        definitions: Sequence[ToolDefinition] = (),
        parser: ActionParser | None = None,
    ) -> str:
        """Return the next action that the person types; `parser` reads the calls of tools."""
        with contextlib.suppress(ImportError):  # not on every system
            import readline  # noqa: F401 - its import gives `input` arrow keys and a history
        lines = [f"  /{_usage(tool)}  {tool.description}".rstrip() for tool in definitions]
        tools = "\n".join(["tools:", *lines]) if lines else ""
        if not self.played.calls:
            if tools:
                self._print(Text(tools, "dim"))
            self._print(Text("(? for help, quit to exit)", "dim"))
        while True:
            line = input(self._prompt)
            if not sys.stdin.isatty():
                self._print(Text(line))  # a transcript of piped input shows it
            word = line.strip()
            if word == "quit":
                raise EOFError
            if word == "?":
                self._print(Text(env.get_state_description()))
                self._print(Text("\n".join(filter(None, [HELP, tools])), "dim"))
            elif word == "hint":
                hint = env.expert_action()
                self._print(Text(hint or "This environment has no expert.", "cyan"))
            elif word.startswith("/") and definitions and parser is not None:
                try:
                    return parser.render(_tool_call(word, definitions))
                except ConfigError as error:
                    self._print(Text(f"{error} As an action: ={word}", "yellow"))
            elif word:
                return line.removeprefix("=")

    def action(self, action: str, *, thought: str = "", who: str = "") -> None:
        """Print a player's action, and dimmed its thought before it."""
        if self.is_brief:
            return
        number = Text.assemble(self._prompt, (f"{who} " if who else "", "bold"))
        if thought:
            self._print(Text.assemble(number, (thought, "dim italic")))
            number = Text(" " * len(self._prompt))
        self._print(Text.assemble(number, (action, "cyan")))

    def turn(self, action: str, result: StepResult, calls: Sequence[ToolCall] = ()) -> None:
        """Record a turn; print the results of its tool calls or its observation, and the reward."""
        trajectory = self.played.trajectory
        trajectory.actions.append(action)
        trajectory.rewards.append(result.reward)
        trajectory.infos.append(result.info)
        self.played.calls.append(calls)
        if self.is_brief:
            return
        for call in calls:
            given = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
            style = "magenta" if call.success else "red"
            self._print(Text.assemble((f"  {call.name}({given}) -> ", style), str(call.result)))
        if result.observation and not (calls and all(call.result is not None for call in calls)):
            self._print(Text(result.observation))
        reward = result.reward
        style = "green" if reward > 0 else "red" if reward < 0 else "dim"
        note = Text(f"  reward {reward:+.4g}" if reward else "  reward 0", style)
        if result.info.get("invalid_action"):
            note.append("  (invalid action)", "yellow")
        self._print(note)

    def ending(self) -> None:
        trajectory, score = self.played.trajectory, self.played.score
        verdict, style = "Finished", "bold"
        if trajectory.reports_success:
            solved = trajectory.success
            verdict, style = ("Solved", "bold green") if solved else ("Not solved", "bold red")
        turns, reward = count(trajectory.num_turns, "turn"), f"{trajectory.total_reward:.4g}"
        if self.is_brief:
            end = "" if score is None else f"  score {score:.4g}"
            seed = f"seed {trajectory.seed}"
            self._print(Text(f"{seed:<12}{verdict:<14}{turns:<12}reward {reward}{end}"))
            return
        by_function = "" if score is None else f"score {score:.4g} by the reward function, "
        facts = f"{turns}, total reward {reward}, {by_function}{ENDINGS[trajectory.status]}"
        self._print(Text.assemble("\n", (verdict, style), f"  {facts}"))

    def summary(self, episodes: Sequence[Played]) -> None:
        trajectories = [played.trajectory for played in episodes]
        facts = [
            f"mean reward {statistics.fmean(each.total_reward for each in trajectories):.4g}",
            f"mean turns {statistics.fmean(each.num_turns for each in trajectories):.1f}",
        ]
        if any(trajectory.reports_success for trajectory in trajectories):
            share = statistics.fmean(trajectory.success for trajectory in trajectories)
            facts.insert(0, f"success {share:.0%}")
        scores = [played.score for played in episodes if played.score is not None]
        if scores:
            facts.append(f"mean score {statistics.fmean(scores):.4g}")
        title = f"\n{len(trajectories)} episodes by {self.player}: "
        self._print(Text(title + ", ".join(facts), "bold"))

    def left(self) -> None:
        turns, total = self.played.trajectory.num_turns, self.played.trajectory.total_reward
        self._print(Text(f"\nStopped after {count(turns, 'turn')}, total reward {total:.4g}."))

    def failed(self, error: Exception | str) -> None:
        console = make_console(stderr=True)
        turn = self.played.trajectory.num_turns + 1
        why = error if isinstance(error, str) else explain(error)
        console.print(Text(legible(f"{self.name} failed in turn {turn}: {why}"), "red"))
        console.print(Text("Add --debug for the traceback, or run turnwise check-env."))

    @property
    def _prompt(self) -> str:
        return f"{self.played.trajectory.num_turns + 1}> "

    def _print(self, text: Text) -> None:
        text.plain = legible(text.plain)
        self.console.print(text)


def _tool_call(line: str, definitions: Sequence[ToolDefinition]) -> ToolCall:
    """Return the call of a typed `/tool name=value ...`.

    `ConfigError` for one that cannot be meant: it would be an action, and cost a turn.
    """
    try:
        name, *words = shlex.split(line[1:]) or [""]
    except ValueError as error:
        raise ConfigError(f"{line} cannot be read: {error}.") from None
    tools = {tool.name: tool for tool in definitions}
    if name not in tools:
        raise ConfigError(f"there is no tool {name!r}. {did_you_mean(name, tools)}")
    if any("=" not in word for word in words):
        raise ConfigError(f"got {line}, expected /{_usage(tools[name])}".rstrip())
    arguments: dict[str, Any] = {}
    for word in words:
        key, _, value = word.partition("=")
        try:
            arguments[key] = json.loads(value)
        except ValueError:
            arguments[key] = value
    return ToolCall(name, arguments)


def _usage(tool: ToolDefinition) -> str:
    """Return a call of a tool as a person types it."""
    names = (tool.parameters or {}).get("properties", {})
    return " ".join([tool.name, *(f"{name}=..." for name in names)])
