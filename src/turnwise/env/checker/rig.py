"""The rig that checks drive an environment with: every call is watched, and what goes wrong in a
call comes out as a finding."""

from __future__ import annotations

import asyncio
import inspect
import re
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from turnwise.env.base import BaseEnvironment
from turnwise.env.catalog import EnvironmentFactory
from turnwise.env.checker.global_random import GlobalRandom
from turnwise.env.checker.report import Finding
from turnwise.env.checker.tool_steps import ToolSteps
from turnwise.env.driver import reset_environment
from turnwise.errors import EnvironmentFault
from turnwise.types import StepResult

T = TypeVar("T")

GENERAL_TEXTS = ("yes", "no", "1", "42", "help", "look around", "go north", "take it", "A")
"""What the checks say in an environment that offers no actions of its own."""

MAX_TURNS = 100
"""Episodes longer than this are compared by their first turns only."""


class BrokenCallError(Exception):
    """A call into the environment failed; the check it belongs to cannot go on."""

    def __init__(self, finding: Finding, error: BaseException | None = None) -> None:
        super().__init__(finding.message)
        self.finding = finding
        self.error = error


@dataclass(frozen=True)
class Turn:
    """What one call of the environment answered; the first of an episode is `reset`'s."""

    action: str | None
    """None for `reset`."""
    observation: str
    state: str | None = None
    """The state description, if it was asked for."""
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated

    @property
    def is_invalid(self) -> bool:
        return bool(self.info.get("invalid_action", False))


@dataclass(frozen=True)
class Choice:
    """An action for the next turn; `trusted` if the environment itself offered it."""

    action: str
    trusted: bool = True


Chooser = Callable[[BaseEnvironment], Choice | None]
"""Says the next action; None ends the play."""


class Rig:
    """Makes environments and plays them; remembers what it made and how long calls took."""

    def __init__(
        self,
        factory: EnvironmentFactory,
        *,
        seed: int,
        num_episodes: int,
        slow_after: float,
        timeout: float,
        spawns_instance: bool,
        tasks: Sequence[Mapping[str, Any]] | None = None,
        tool_steps: ToolSteps | None = None,
    ) -> None:
        self.factory = factory
        self.tasks = tasks
        """Rows of a dataset; an episode plays the one that its seed counts to."""
        self._tool_steps = tool_steps or ToolSteps()
        self.seeds = range(seed, seed + num_episodes)
        self.seed = seed
        self.num_episodes = num_episodes
        self.slow_after = slow_after
        self.timeout = timeout
        self.spawns_instance = spawns_instance
        """Whether the user gave an instance, so that every environment is a copy of it."""
        self.texts: list[str] = list(GENERAL_TEXTS)
        """Those of the general texts that the environment answers."""
        self.made: list[BaseEnvironment] = []
        self.reset_seconds: list[float] = []
        self.step_seconds: list[float] = []
        self.global_random = GlobalRandom()
        self.waiting_for: tuple[str, float] | None = None
        """The call that is under way, and the time by which it must be back."""
        self.is_hung = False
        """A call did not come back; whoever still plays must stop."""
        self._loop = asyncio.new_event_loop()

    def call(self, what: str, function: Callable[..., T], *args: Any) -> T:
        """Call into the environment; what it raises comes out as a `BrokenCallError`."""
        if self.is_hung:
            raise SystemExit  # ends the thread that was left behind
        self.waiting_for = (what, time.monotonic() + self.timeout)
        try:
            with self.global_random.watch(what):
                return function(*args)
        except BaseException as error:  # sys.exit() in an environment is a finding too
            raise BrokenCallError(_raised(what, error), error) from error
        finally:
            self.waiting_for = None

    def make(self) -> BaseEnvironment:
        what = "spawn()" if self.spawns_instance else "making the environment"
        env = self.call(what, self.factory)
        self.made.append(env)
        return env

    def reset(self, env: BaseEnvironment, seed: int) -> str:
        reset = self._timed(self.reset_seconds)
        if self.tasks:
            env.task = dict(self.tasks[seed % len(self.tasks)])
        try:
            return self.call("reset()", lambda: reset(self._begin(env, seed)))
        except BrokenCallError as broken:
            if self.tasks or env.task is not None or not _reads_task(env):
                raise
            raise BrokenCallError(_no_task(broken.finding.message), broken.error) from None

    async def _begin(self, env: BaseEnvironment, seed: int) -> str:
        await self._tool_steps.begin(env)
        return await reset_environment(env, seed)

    def step(self, env: BaseEnvironment, choice: Choice) -> StepResult:
        step = self._timed(self.step_seconds)
        what = f"step({shorten(choice.action)})"
        try:
            return self.call(what, lambda: step(self._tool_steps.step(env, choice.action)))
        except BrokenCallError as broken:
            if not choice.trusted and broken.finding.check == "exceptions":
                raise BrokenCallError(odd_action(broken.finding.message), broken.error) from None
            raise

    def describe(self, env: BaseEnvironment) -> str:
        return self.call("get_state_description()", env.get_state_description)

    def turns(
        self,
        env: BaseEnvironment,
        seed: int,
        choose: Chooser,
        *,
        describe: bool = True,
        max_turns: int = MAX_TURNS,
    ) -> Iterator[Turn]:
        """Play one episode, turn by turn, up to its end or until it has taken `timeout`."""
        deadline = time.monotonic() + self.timeout
        yield Turn(None, self.reset(env, seed), self.describe(env) if describe else None)
        for _ in range(max_turns):
            choice = choose(env)
            if choice is None or time.monotonic() > deadline:
                return
            result = self.step(env, choice)
            yield Turn(
                choice.action,
                result.observation,
                self.describe(env) if describe else None,
                result.reward,
                result.terminated,
                result.truncated,
                result.info,
            )
            if result.done:
                return

    def play(
        self,
        env: BaseEnvironment,
        seed: int,
        choose: Chooser,
        *,
        describe: bool = True,
        max_turns: int = MAX_TURNS,
    ) -> list[Turn]:
        """One episode as the list of its turns."""
        return list(self.turns(env, seed, choose, describe=describe, max_turns=max_turns))

    def close_all(self) -> list[Finding]:
        """Close what was made, twice, as it may happen in training."""
        environments, self.made = self.made, []
        self.call(
            "closing the tools", lambda: self._loop.run_until_complete(self._tool_steps.close())
        )
        for time_called in ("", " the second time"):
            for env in environments:
                try:
                    self.call("close()", env.close)
                except BrokenCallError as broken:
                    return [_not_closed(broken.finding.message + time_called)]
        return []

    def shut(self) -> None:
        if not self._loop.is_running():  # a call that hangs may still hold it
            self._loop.close()

    def _timed(self, seconds: list[float]) -> Callable[[Coroutine[Any, Any, T]], T]:
        def run(coroutine: Coroutine[Any, Any, T]) -> T:
            start = time.perf_counter()
            result = self._loop.run_until_complete(coroutine)
            seconds.append(time.perf_counter() - start)
            return result

        return run


def _reads_task(env: BaseEnvironment) -> bool:
    try:
        return "self.task" in inspect.getsource(type(env))
    except (OSError, TypeError):  # typed at a prompt
        return False


def _no_task(message: str) -> Finding:
    return Finding(
        "error",
        "task",
        f"{message}; the environment reads self.task, and there is no dataset",
        "Give the rows that it is to play: `turnwise check-env ... --dataset rows.jsonl`, or in "
        "Python check_env(..., dataset=rows).",
    )


def shorten(value: object, width: int = 60) -> str:
    """`repr`, short enough for a message."""
    text = repr(value)
    return text if len(text) <= width else f"{text[: width - 4]}...{text[-1]}"


def odd_action(message: str) -> Finding:
    return Finding(
        "error",
        "odd-actions",
        f"{message}; a model can say any text, so step() must answer every text",
        "Where the action is not understood, `return 'I did not understand that.', 0.0, False, "
        "{'invalid_action': True}` instead of raising.",
    )


def _not_closed(message: str) -> Finding:
    return Finding(
        "error",
        "close",
        message,
        "Let close() be called at any time, also twice: `if self.x is not None: self.x.close(); "
        "self.x = None`.",
    )


def timed_out(what: str, seconds: float) -> Finding:
    return Finding(
        "error",
        "timeout",
        f"{what} did not come back within {seconds:g} s",
        "Look there for a loop without end, a regular expression that backtracks, a lock or a "
        "wait on the network; if it is only slow, call check_env(..., timeout=60).",
    )


def _raised(what: str, error: BaseException) -> Finding:
    if isinstance(error, EnvironmentFault):
        return _fault(what, error)
    return Finding(
        "error",
        "exceptions",
        f"{what} raised {explain(error)}",
        "Fix that line. Where only the action can be at fault, return {'invalid_action': True} "
        "as the info instead of raising.",
    )


def _fault(what: str, error: EnvironmentFault) -> Finding:
    """The driver's own complaint; its first sentence is the fault, the rest is the fix."""
    parts = re.match(r"(?P<fault>.*?\bexpected .*?)\.\s+(?P<fix>.+)", str(error), re.DOTALL)
    fault, fix = parts.group("fault", "fix") if parts else (str(error).rstrip("."), "")
    if what.startswith("step("):
        fault += f" (after {what})"
    return Finding(
        "error",
        "step" if what.startswith("step(") else what.removesuffix("()"),
        fault,
        fix or "Write `return observation, reward, done, {}` with a str, a float and a bool.",
    )


def explain(error: BaseException) -> str:
    """The error and the line it came from, as one line of text."""
    text = f"{type(error).__name__}: {error}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename != __file__ and not frame.filename.startswith("<frozen")
    ]
    if isinstance(error, SyntaxError) or not frames:  # a SyntaxError names the place itself
        return text
    return f"{text} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"
