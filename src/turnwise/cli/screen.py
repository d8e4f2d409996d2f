"""How a game looks in the terminal: rules, observations, rewards, endings; plain when piped."""

from __future__ import annotations

import contextlib
import statistics
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from turnwise.cli.common import legible, make_console
from turnwise.env.base import BaseEnvironment
from turnwise.env.checker.rig import explain
from turnwise.env.driver import StepResult
from turnwise.types import EpisodeStatus, Trajectory

HELP = (
    "? shows the state and this help, hint asks the expert, quit leaves (so do Ctrl-C and Ctrl-D). "
    "To say one of these words to the environment itself, put = before it: =quit"
)
ENDINGS = {
    EpisodeStatus.DONE: "done",
    EpisodeStatus.TRUNCATED_BY_ENVIRONMENT: "cut by the environment",
    EpisodeStatus.TRUNCATED_BY_TURNS: "out of steps",
}


class Screen:
    """Prints one game after the other; `is_brief` prints a line an episode instead."""

    def __init__(self, console: Console, name: str, is_brief: bool = False) -> None:
        self.console = console
        self.name = name
        self.is_brief = is_brief
        self.trajectory = Trajectory()
        """The episode that is being played."""

    def opening(self, env: BaseEnvironment, observation: str, trajectory: Trajectory) -> None:
        self.trajectory = trajectory
        if self.is_brief:
            return
        limit = f"at most {env.max_steps} {_turns(env.max_steps).split()[-1]}"
        self._print(
            Text.assemble((self.name, "bold"), (f"  seed {trajectory.seed}, {limit}", "dim"))
        )
        if rules := env.get_prompt_prefix().strip():
            self._rules(rules)
        self._print(Text(f"\n{observation}\n"))

    def _rules(self, rules: str) -> None:
        if self.console.is_terminal:
            self.console.print(
                Panel(Text(legible(rules)), title="rules", title_align="left", border_style="dim")
            )
        else:
            self._print(Text(f"rules: {rules}"))

    def ask(self, env: BaseEnvironment) -> str:
        """The next action of the person at the keyboard."""
        with contextlib.suppress(ImportError):  # not on every system
            import readline  # noqa: F401 - its import gives `input` arrow keys and a history
        if not self.trajectory.actions:
            self._print(Text("(? for help, quit to leave)", "dim"))
        while True:
            line = input(self._prompt())
            if not sys.stdin.isatty():
                self._print(Text(line))  # so that a transcript of piped input can be read
            word = line.strip()
            if word == "quit":
                raise EOFError
            if word == "?":
                self._print(Text(env.get_state_description()))
                self._print(Text(HELP, "dim"))
            elif word == "hint":
                hint = env.expert_action()
                self._print(Text(hint or "This environment has no expert to ask.", "cyan"))
            elif word:
                return line.removeprefix("=")

    def action(self, action: str) -> None:
        """What a scripted player says."""
        if not self.is_brief:
            self._print(Text.assemble(self._prompt(), (action, "cyan")))

    def turn(self, result: StepResult) -> None:
        if self.is_brief:
            return
        if result.observation:
            self._print(Text(result.observation))
        note = Text(f"  reward {_signed(result.reward)}", _colour(result.reward))
        if result.info.get("invalid_action"):
            note.append("  (not understood)", "yellow")
        self._print(note)

    def ending(self, trajectory: Trajectory) -> None:
        verdict, style = _verdict(trajectory)
        if self.is_brief:
            seed = f"seed {trajectory.seed}"
            line = f"{seed:<12}{verdict:<14}{_turns(trajectory.num_turns):<12}"
            self._print(Text(f"{line}reward {_number(trajectory.total_reward)}"))
            return
        facts = [_turns(trajectory.num_turns), f"total reward {_number(trajectory.total_reward)}"]
        facts.append(ENDINGS[trajectory.status])
        self._print(Text.assemble("\n", (verdict, style), f"  {', '.join(facts)}"))

    def summary(self, trajectories: Sequence[Trajectory], player: str) -> None:
        rewards = statistics.fmean(trajectory.total_reward for trajectory in trajectories)
        turns = statistics.fmean(trajectory.num_turns for trajectory in trajectories)
        solved = statistics.fmean(trajectory.success for trajectory in trajectories)
        self._print(
            Text(
                f"\n{len(trajectories)} episodes by {player}: success {solved:.0%}, "
                f"mean reward {_number(rewards)}, mean turns {turns:.1f}",
                "bold",
            )
        )

    def left(self) -> None:
        turns, total = self.trajectory.num_turns, self.trajectory.total_reward
        self._print(Text(f"\nLeft after {_turns(turns)}, total reward {_number(total)}."))

    def failed(self, error: Exception) -> None:
        console = make_console(stderr=True)
        turn = self.trajectory.num_turns + 1
        console.print(Text(f"{self.name} failed in turn {turn}: {explain(error)}", "red"))
        console.print(Text("See the traceback with --debug; look closer with turnwise check-env."))

    def _prompt(self) -> str:
        return f"{self.trajectory.num_turns + 1}> "

    def _print(self, text: Text) -> None:
        text.plain = legible(text.plain)
        self.console.print(text)


def _verdict(trajectory: Trajectory) -> tuple[str, str]:
    if trajectory.success:
        return "Solved", "bold green"
    says_so = "success" in trajectory.infos[-1]
    return ("Not solved", "bold red") if says_so else ("Finished", "bold")


def _turns(count: int) -> str:
    return f"{count} turn" if count == 1 else f"{count} turns"


def _number(value: float) -> str:
    return f"{value:.4g}"


def _signed(value: float) -> str:
    return f"{value:+.4g}" if value else "0"


def _colour(value: float) -> str:
    return "green" if value > 0 else "red" if value < 0 else "dim"
