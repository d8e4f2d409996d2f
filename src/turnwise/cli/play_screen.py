"""Prints episodes of `turnwise play`: prompts, observations, rewards, results."""

from __future__ import annotations

import contextlib
import json
import shlex
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.text import Text

from turnwise.cli.common import legible, make_console
from turnwise.env.base import BaseEnvironment
from turnwise.env.checker.harness import explain
from turnwise.errors import ConfigError, did_you_mean
from turnwise.progress.lines import count
from turnwise.tools import ActionParser, ToolCall, ToolDefinition
from turnwise.types import EpisodeStatus, StepResult, Trajectory

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
