"""Prints episodes of `turnwise play`: prompts, observations, rewards, results."""

from __future__ import annotations

import contextlib
import json
import shlex
import statistics
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from turnwise.cli.common import legible, make_console
from turnwise.env.base import BaseEnvironment
from turnwise.env.checker.report import explain
from turnwise.errors import ConfigError, did_you_mean
from turnwise.progress.run_state import count
from turnwise.tools import ActionParser, ToolCall, ToolDefinition
from turnwise.types import EpisodeStatus, StepResult, Trajectory

if TYPE_CHECKING:
    from turnwise.cli.play_episodes import Played

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
_MOST_SHOWN = 2000
"""Characters of a tool result that are printed."""


class Screen:
    """Prints episodes turn by turn, or one line per episode if `is_brief`."""

    def __init__(self, console: Console, name: str, is_brief: bool = False) -> None:
        self.console = console
        self.name = name
        self.is_brief = is_brief
        self.trajectory = Trajectory()
        """The current episode."""

    def start(self, played: Played, rules: str, observation: str, max_turns: int | None) -> None:
        self.trajectory = played.trajectory
        if self.is_brief:
            return
        facts = [f"seed {self.trajectory.seed}"]
        if played.row is not None:
            facts.append(f"row {played.row + 1} of the dataset")
        if max_turns is not None:
            facts.append(f"at most {count(max_turns, 'turn')}")
        self._print(Text.assemble((self.name, "bold"), (f"  {', '.join(facts)}", "dim")))
        if rules and self.console.is_terminal:
            text = Text(legible(rules))
            title: Any = {"title": "system prompt", "title_align": "left", "border_style": "dim"}
            self.console.print(Panel(text, **title))
        elif rules:
            self._print(Text(f"system prompt: {rules}"))
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
        tools = ""
        if definitions:
            lines = [
                f"  /{tool.name} {_expected(tool)}  {tool.description}".rstrip()
                for tool in definitions
            ]
            tools = "\n".join(["tools:", *lines])
        if not self.trajectory.actions:
            if tools:
                self._print(Text(tools, "dim"))
            self._print(Text("(? for help, quit to exit)", "dim"))
        while True:
            line = input(self._prompt())
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
        number = Text.assemble(self._prompt(), (f"{who} " if who else "", "bold"))
        if thought:
            self._print(Text.assemble(number, (thought, "dim italic")))
            number = Text(" " * len(self._prompt()))
        self._print(Text.assemble(number, (action, "cyan")))

    def turn(self, result: StepResult, calls: Sequence[ToolCall] = ()) -> None:
        """Print the results of a turn's tool calls or its observation, and the reward."""
        if self.is_brief:
            return
        for call in calls:
            self._call(call)
        if result.observation and not (calls and all(call.result is not None for call in calls)):
            self._print(Text(result.observation))
        reward = result.reward
        style = "green" if reward > 0 else "red" if reward < 0 else "dim"
        note = Text(f"  reward {reward:+.4g}" if reward else "  reward 0", style)
        if result.info.get("invalid_action"):
            note.append("  (invalid action)", "yellow")
        self._print(note)

    def _call(self, call: ToolCall) -> None:
        given = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
        result = str(call.result)
        if len(result) > _MOST_SHOWN:
            result = f"{result[:_MOST_SHOWN]} ... ({len(result):,} characters)"
        style = "magenta" if call.success else "red"
        self._print(Text.assemble((f"  {call.name}({given}) -> ", style), result))

    def ending(self, played: Played) -> None:
        trajectory = played.trajectory
        verdict, style = _verdict(trajectory)
        if self.is_brief:
            seed = f"seed {trajectory.seed}"
            line = f"{seed:<12}{verdict:<14}{count(trajectory.num_turns, 'turn'):<12}"
            score = "" if played.score is None else f"  score {_number(played.score)}"
            self._print(Text(f"{line}reward {_number(trajectory.total_reward)}{score}"))
            return
        facts = [
            count(trajectory.num_turns, "turn"),
            f"total reward {_number(trajectory.total_reward)}",
        ]
        if played.score is not None:
            facts.append(f"score {_number(played.score)} by the reward function")
        facts.append(ENDINGS[trajectory.status])
        self._print(Text.assemble("\n", (verdict, style), f"  {', '.join(facts)}"))

    def summary(self, episodes: Sequence[Played], player: str) -> None:
        trajectories = [played.trajectory for played in episodes]
        rewards = statistics.fmean(trajectory.total_reward for trajectory in trajectories)
        turns = statistics.fmean(trajectory.num_turns for trajectory in trajectories)
        success = ""
        if any(trajectory.reports_success for trajectory in trajectories):
            share = statistics.fmean(trajectory.success for trajectory in trajectories)
            success = f"success {share:.0%}, "
        scores = [played.score for played in episodes if played.score is not None]
        score = f", mean score {_number(statistics.fmean(scores))}" if scores else ""
        self._print(
            Text(
                f"\n{len(trajectories)} episodes by {player}: {success}"
                f"mean reward {_number(rewards)}, mean turns {turns:.1f}{score}",
                "bold",
            )
        )

    def left(self) -> None:
        turns, total = self.trajectory.num_turns, self.trajectory.total_reward
        self._print(Text(f"\nStopped after {count(turns, 'turn')}, total reward {_number(total)}."))

    def failed(self, error: Exception | str) -> None:
        console = make_console(stderr=True)
        turn = self.trajectory.num_turns + 1
        why = error if isinstance(error, str) else explain(error)
        console.print(Text(legible(f"{self.name} failed in turn {turn}: {why}"), "red"))
        console.print(Text("Add --debug for the traceback, or run turnwise check-env."))

    def _prompt(self) -> str:
        return f"{self.trajectory.num_turns + 1}> "

    def _print(self, text: Text) -> None:
        text.plain = legible(text.plain)
        self.console.print(text)


def _verdict(trajectory: Trajectory) -> tuple[str, str]:
    if trajectory.success:
        return "Solved", "bold green"
    is_known = trajectory.reports_success
    return ("Not solved", "bold red") if is_known else ("Finished", "bold")


def _number(value: float) -> str:
    return f"{value:.4g}"


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
        raise ConfigError(f"got {line}, expected /{name} {_expected(tools[name])}".rstrip())
    arguments: dict[str, Any] = {}
    for word in words:
        key, _, value = word.partition("=")
        try:
            arguments[key] = json.loads(value)
        except ValueError:
            arguments[key] = value
    return ToolCall(name, arguments)


def _expected(tool: ToolDefinition) -> str:
    """Return the arguments of a tool as a person types them."""
    return " ".join(f"{name}=..." for name in (tool.parameters or {}).get("properties", {}))
