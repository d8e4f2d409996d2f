"""`Harness` plays environments for the checks and watches every call; findings and their report."""

import asyncio
import pickle
import random
import re
import sys
import time
import traceback
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from turnwise.env.base import NO_TASK, BaseEnvironment
from turnwise.env.catalog import EnvironmentFactory
from turnwise.env.driver import reset_environment, step_environment
from turnwise.errors import EnvironmentFault, describe_error
from turnwise.tools.base import marked_tools
from turnwise.tools.context import ToolContext
from turnwise.tools.parsers import ActionParser, get_parser, other_format
from turnwise.tools.registry import ToolRegistry
from turnwise.tools.types import ToolFailure
from turnwise.types import StepResult

T = TypeVar("T")

Level = Literal["error", "warning", "note"]
_CHECKER_FOLDER = str(Path(__file__).parent)


@dataclass(frozen=True)
class Finding:
    """One problem, and what to write instead.

    >>> print(Finding("error", "close", "close() raised ValueError", "Let it be called twice."))
    error [close] close() raised ValueError
      fix: Let it be called twice.
    """

    level: Level
    """An error breaks training; a warning makes it worse; a note is worth knowing."""
    check: str
    """The name of the check."""
    message: str
    """The problem: what was got, and what was expected."""
    fix: str
    """The change that removes the problem."""

    def __str__(self) -> str:
        return f"{self.level} [{self.check}] {self.message}\n  fix: {self.fix}"


@dataclass
class CheckReport:
    """All findings about one environment; `ok` when none of them is an error."""

    environment: str
    """The name of what was checked."""
    findings: list[Finding] = field(default_factory=list)
    """All findings, in the order of the checks."""
    passed: list[str] = field(default_factory=list)
    """The checks that found nothing."""
    skipped: list[str] = field(default_factory=list)
    """The checks that make no sense before an earlier finding is fixed."""

    @property
    def ok(self) -> bool:
        """Whether there are no errors; warnings and notes are allowed."""
        return not self.of_level("error")

    def of_level(self, level: Level) -> list[Finding]:
        """Returns the findings of one level."""
        return [finding for finding in self.findings if finding.level == level]

    @property
    def summary(self) -> str:
        """One line: how many findings of each level."""
        counts = [
            f"{count} {level}{'s' if count > 1 else ''}"
            for level in ("error", "warning", "note")
            if (count := len(self.of_level(level)))
        ]
        return f"{self.environment}: {', '.join(counts) or 'no findings'}"

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def __bool__(self) -> bool:
        """Returns `ok`, so that `assert check_env(env)` works."""
        return self.ok

    def __str__(self) -> str:
        lines = [self.summary, *(str(finding) for finding in self.findings)]
        if self.skipped:
            lines.append(f"not run until this is fixed: {', '.join(self.skipped)}")
        return "\n".join(lines)


def shorten(value: object, width: int = 60) -> str:
    """Returns a `repr` that is short enough for a message."""
    text = repr(value)
    return text if len(text) <= width else f"{text[: width - 4]}...{text[-1]}"


def other_parser(action: str, parser: str) -> Finding:
    """Returns the finding of a tool call that only another parser reads."""
    return Finding(
        "warning",
        "parser",
        f"{shorten(action)} is a tool call in the format of the parser {parser!r}, which is not "
        "the one in use: it went to step() as text",
        f"Check with `--parser {parser}`, and train with `parser: {parser}`; or let the "
        "environment offer calls as the parser in use reads them.",
    )


def explain(error: BaseException) -> str:
    """Returns the error and the line that raised it, as one line of text."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(("<frozen", _CHECKER_FOLDER))
    ]
    if isinstance(error, SyntaxError) or not frames:  # a SyntaxError names the line itself
        return describe_error(error)
    return f"{describe_error(error)} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"


GENERAL_TEXTS = ("yes", "no", "1", "42", "help", "look around", "go north", "take it", "A")
"""Actions for environments that offer none of their own."""

MAX_TURNS = 100
"""Episodes longer than this are compared by their first turns only."""

Chooser = Callable[[BaseEnvironment], str | None]
"""Returns the next action; None ends the episode."""


class BrokenCallError(Exception):
    """A call of the environment failed; its check cannot continue."""

    def __init__(self, finding: Finding, error: BaseException | None = None) -> None:
        super().__init__(finding.message)
        self.finding = finding
        self.error = error


@dataclass(frozen=True)
class Transition:
    """The result of one step; the first transition of an episode is that of `reset`."""

    action: str | None
    """None for `reset`."""
    result: StepResult
    state: str | None = None
    """The state description, if it was requested."""


@dataclass
class Harness:
    """Creates environments and plays them; keeps what it created and how long calls took.

    A turn is played as in an episode: tool calls are executed, any other text is a step.
    """

    factory: EnvironmentFactory
    seed: int
    num_episodes: int
    slow_after: float
    timeout: float
    spawns_instance: bool
    """Whether the user passed an instance, so that every environment is a copy of it."""
    tasks: Sequence[Mapping[str, Any]] | None
    """Rows of a dataset; an episode plays the row at its seed."""
    tools: ToolRegistry | None
    """Those of the agent; the environment's own are added."""
    parser: ActionParser | str
    made: list[BaseEnvironment] = field(default_factory=list)
    reset_seconds: list[float] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    drawn_from: dict[str, str] = field(default_factory=dict)
    """Calls that drew from a global generator, with its module: {"step()": "random"}."""
    waiting_for: tuple[str, float] | None = None
    """The current call, and the time by which it must return."""
    is_hung: bool = False
    """A call did not return; the thread that made it must stop."""
    called_tool: str | None = None
    """The last tool that the last turn called."""
    other_format: str | None = None
    """The parser that reads a call in the last turn, where the one in use reads none."""

    def __post_init__(self) -> None:
        self.seeds = range(self.seed, self.seed + self.num_episodes)
        self._loop = asyncio.new_event_loop()
        self._opened: dict[int, tuple[ToolRegistry, ActionParser, ToolContext]] = {}

    def call(self, what: str, function: Callable[..., T], *args: Any) -> T:
        """Calls the environment; its exceptions become a `BrokenCallError`."""
        if self.is_hung:
            raise SystemExit  # ends the abandoned thread
        self.waiting_for = (what, time.monotonic() + self.timeout)
        before = _global_random_states()
        try:
            return function(*args)
        except BaseException as error:  # sys.exit() in an environment is a finding too
            raise BrokenCallError(_failed_call(what, error), error) from error
        finally:
            self.waiting_for = None
            name = f"{what.partition('(')[0]}()" if "(" in what else what
            if name == "step()" and self.called_tool is not None:
                name = f"the tool {self.called_tool}"
            for module, state in _global_random_states().items():
                # A module that the call imported has no earlier state to compare with.
                if before.get(module, state) != state:
                    self.drawn_from.setdefault(name, module)

    def make(self) -> BaseEnvironment:
        what = "spawn()" if self.spawns_instance else "making the environment"
        env = self.call(what, self.factory)
        self.made.append(env)
        return env

    def reset(self, env: BaseEnvironment, seed: int) -> str:
        if self.tasks:
            env.task = dict(self.tasks[seed % len(self.tasks)])

        async def begin() -> str:
            if id(env) in self._opened:  # the tools of the environment's earlier episode
                await self._opened.pop(id(env))[2].aclose()
            return await reset_environment(env, seed)

        try:
            return self.call("reset()", lambda: self._timed(begin(), self.reset_seconds))
        except BrokenCallError as broken:
            if env.task is not None or "NoneType" not in broken.finding.message:
                raise
            message = f"{broken.finding.message}. {NO_TASK}"
            fix = (
                "Give the rows: `check-env ... --dataset rows.jsonl`, check_env(..., dataset=rows)."
            )
            finding = Finding("error", "task", message, fix)
            raise BrokenCallError(finding, broken.error) from None

    def step(self, env: BaseEnvironment, action: str) -> StepResult:
        def take() -> StepResult:
            return self._timed(self._play_turn(env, action), self.step_seconds)

        try:
            return self.call(f"step({shorten(action)})", take)
        except BrokenCallError as broken:
            if self.other_format is None:
                raise
            finding = other_parser(action, self.other_format)
            raise BrokenCallError(finding, broken.error) from None

    def _timed(self, work: Coroutine[Any, Any, T], seconds: list[float]) -> T:
        start = time.perf_counter()
        result = self._loop.run_until_complete(work)
        seconds.append(time.perf_counter() - start)
        return result

    async def _play_turn(self, env: BaseEnvironment, text: str) -> StepResult:
        self.called_tool = self.other_format = None
        if self.tools is None and not marked_tools(env):
            return await step_environment(env, text)
        if id(env) not in self._opened:
            registry = (ToolRegistry() if self.tools is None else self.tools).bind(env)
            parser = self.parser
            if isinstance(parser, str):
                parser = get_parser(parser, definitions=registry.definitions)
            self._opened[id(env)] = (registry, parser, registry.open_context(env))
        registry, parser, context = self._opened[id(env)]
        parsed = parser.parse(text)
        if parsed.is_empty:
            self.other_format = other_format(text, parser, registry.definitions)
            return await step_environment(env, text)
        turn = StepResult("", 0.0, terminated=False, truncated=False, info={})
        steps_before = env.step_count
        answers = []
        for call in parsed.calls:
            self.called_tool = call.name
            result = await registry.execute_async(call, context)
            answers.append(result.text)
            if result.failure is ToolFailure.ENVIRONMENT:
                raise EnvironmentFault(result.text)
            if result.failure in (ToolFailure.UNKNOWN_TOOL, ToolFailure.BAD_ARGUMENTS):
                turn.info["invalid_action"] = True
            if result.step is not None:
                turn.reward += result.step.reward
                turn.info.update(result.step.info)
                turn.terminated, turn.truncated = result.step.terminated, result.step.truncated
            if turn.done:
                break
        if parsed.malformed is not None:
            answers.append(f"A call could not be read: {parsed.malformed}")
            turn.info["invalid_action"] = True
        if env.step_count == steps_before:
            env.step_count += 1  # a turn of calls is a step towards max_steps
        turn.observation = "\n\n".join(answers)
        turn.terminated = turn.terminated or env.done
        turn.truncated = turn.truncated or (not turn.done and env.step_count >= env.max_steps)
        return turn

    def describe(self, env: BaseEnvironment) -> str:
        return self.call("get_state_description()", env.get_state_description)

    def turns(
        self,
        env: BaseEnvironment,
        seed: int,
        choose: Chooser | None = None,
        *,
        describe: bool = True,
        max_turns: int = MAX_TURNS,
    ) -> Iterator[Transition]:
        """Plays one episode, step by step, up to its end or for `timeout` seconds.

        By default it plays random actions, those of this seed.
        """
        choose = choose or self.random_actions(seed)
        deadline = time.monotonic() + self.timeout
        start = StepResult(self.reset(env, seed), 0.0, terminated=False, truncated=False, info={})
        yield Transition(None, start, self.describe(env) if describe else None)
        for _ in range(max_turns):
            action = choose(env)
            if action is None or time.monotonic() > deadline:
                return
            result = self.step(env, action)
            yield Transition(action, result, self.describe(env) if describe else None)
            if result.done:
                return

    def play(
        self, env: BaseEnvironment, seed: int, choose: Chooser | None = None, **options: Any
    ) -> list[Transition]:
        """Plays one episode and returns all its transitions; the options are those of `turns`."""
        return list(self.turns(env, seed, choose, **options))

    def random_actions(self, seed: int) -> Chooser:
        """Chooses `sample_action`, else the expert's action, else a general text."""
        # Other random numbers than the environment's own.
        rng = random.Random(f"actions {seed}")

        def choose(env: BaseEnvironment) -> str:
            action = self.offered(env, "sample_action", rng)
            if action is None:
                action = self.offered(env, "expert_action")
            return rng.choice(GENERAL_TEXTS) if action is None else action

        return choose

    def expert_actions(self, env: BaseEnvironment) -> str | None:
        """Chooses the expert's action; None if there is none."""
        return self.offered(env, "expert_action")

    def offered(self, env: BaseEnvironment, method: str, *args: object) -> str | None:
        """Returns the action of `sample_action` or `expert_action`; a wrong type is a finding."""
        action: object = self.call(f"{method}()", getattr(env, method), *args)
        if action is None or isinstance(action, str):
            return action
        problem = f"{type(env).__name__}.{method}() returned {shorten(action)}"
        fix = f"Let {method}() return the action as the agent would write it: `return str(action)`."
        check = method.replace("_", "-")
        raise BrokenCallError(Finding("error", check, f"{problem}, expected a str or None", fix))

    def close_all(self) -> list[Finding]:
        """Closes what was created, twice, as it may happen in training."""
        environments, self.made = self.made, []

        async def close_tools() -> None:
            while self._opened:
                await self._opened.popitem()[1][2].aclose()

        self.call("closing the tools", lambda: self._loop.run_until_complete(close_tools()))
        for when in ("", " the second time"):
            for env in environments:
                try:
                    self.call("close()", env.close)
                except BrokenCallError as broken:
                    fix = "Let close() be called at any time, also twice: `if self.x is not None: "
                    fix += "self.x.close(); self.x = None`."
                    return [Finding("error", "close", broken.finding.message + when, fix)]
        return []

    def shut(self) -> None:
        if not self._loop.is_running():  # a call that hangs may still run on it
            self._loop.close()


def replayed(transitions: Iterable[Transition]) -> Chooser:
    """Repeats the actions of an earlier episode."""
    actions = iter([turn.action for turn in transitions if turn.action is not None])

    def choose(_env: BaseEnvironment) -> str | None:
        return next(actions, None)

    return choose


def _failed_call(what: str, error: BaseException) -> Finding:
    if not isinstance(error, EnvironmentFault):
        return Finding(
            "error",
            "exceptions",
            f"{what} raised {explain(error)}",
            "Fix that line. Where only the action can be at fault, return {'invalid_action': True} "
            "as the info instead of raising.",
        )
    # An error of the driver: its first sentence is the problem, the rest the fix.
    parts = re.match(r"(?P<fault>.*?\bexpected .*?)\.\s+(?P<fix>.+)", str(error), re.DOTALL)
    fault, fix = parts.group("fault", "fix") if parts else (str(error).rstrip("."), "")
    fix = fix or "Write `return observation, reward, done, {}` with a str, a float and a bool."
    if what.startswith("step("):
        return Finding("error", "step", f"{fault} (after {what})", fix)
    return Finding("error", what.removesuffix("()"), fault, fix)


def _global_random_states() -> dict[str, object]:
    states: dict[str, object] = {"random": random.getstate()}
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        states["numpy.random"] = pickle.dumps(numpy_random.get_state(legacy=False))
    return states
