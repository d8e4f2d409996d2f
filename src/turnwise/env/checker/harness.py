"""`Harness` plays environments for the checks and watches every call; findings and their report."""

import asyncio
import pickle
import random
import re
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from turnwise.config import LimitsConfig
from turnwise.deadlines import LoopThread
from turnwise.env.base import NO_TASK, BaseEnvironment
from turnwise.env.catalog import EnvironmentFactory
from turnwise.env.driver import reset_environment, step_environment
from turnwise.errors import EnvironmentFault, describe_error
from turnwise.tools.parsers import ActionParser, get_parser
from turnwise.tools.registry import ToolRegistry
from turnwise.tools.types import ToolContext, ToolFailure
from turnwise.types import StepResult


@dataclass(frozen=True)
class Finding:
    """One problem, and what to write instead.

    >>> print(Finding("error", "close", "close() raised ValueError", "Let it be called twice."))
    error [close] close() raised ValueError
      fix: Let it be called twice.
    """

    level: Literal["error", "warning", "note"]
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
        return all(finding.level != "error" for finding in self.findings)

    @property
    def summary(self) -> str:
        """One line: how many findings of each level."""
        counts = Counter(finding.level for finding in self.findings)
        levels = [f"{count} {level}{'s' if count > 1 else ''}" for level, count in counts.items()]
        return f"{self.environment}: {', '.join(levels) or 'no findings'}"

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __bool__(self) -> bool:
        """Returns `ok`, so that `assert check_env(env)` works."""
        return self.ok

    def __str__(self) -> str:
        lines = [self.summary, *(str(finding) for finding in self.findings)]
        if self.skipped:
            lines.append(f"not run until this is fixed: {', '.join(self.skipped)}")
        return "\n".join(lines)


def explain(error: BaseException) -> str:
    """Returns the error and the line that raised it, as one line of text."""
    stack = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in stack if not frame.filename.startswith("<frozen")]
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

    Every call runs in one other thread with an event loop, which is abandoned when a call hangs.
    """

    factory: EnvironmentFactory
    seeds: range
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
    is_hung: bool = False
    """Whether a call did not return; nothing can be called any more."""

    def __post_init__(self) -> None:
        self._opened: dict[int, tuple[ToolRegistry, ActionParser, ToolContext]] = {}
        self.thread = LoopThread("check_env")

    def call(self, what: str, function: Callable[..., Any], *args: Any) -> Any:
        """Calls the environment, awaiting a coroutine; its failure is a `BrokenCallError`."""

        async def work() -> Any:
            before = _global_random_states()
            try:
                result = function(*args)
                return await result if asyncio.iscoroutine(result) else result
            except (Exception, SystemExit) as error:  # the boundary of user code
                raise BrokenCallError(_failed_call(what, error), error) from error
            finally:
                for module, state in _global_random_states().items():
                    # A module that the call imported has no earlier state to compare with.
                    if before.get(module, state) != state:
                        self.drawn_from.setdefault(re.sub(r"\(.*", "()", what), module)

        try:
            return self.thread.submit(work()).outcome.result(self.timeout)
        except TimeoutError:
            self.is_hung = True
            message = f"{what} did not come back within {self.timeout:g} s"
            fix = (
                "Look there for a loop without end, a lock or a wait on the network; if it is only "
                "slow, call check_env(..., timeout=60)."
            )
            raise BrokenCallError(Finding("error", "timeout", message, fix)) from None

    def run(self, check: Callable[["Harness"], Iterator[Finding]]) -> list[Finding]:
        """Runs a check and closes what it created."""
        findings: list[Finding] = []
        for step in (check, Harness.close_all):
            try:
                findings.extend(step(self))
            except BrokenCallError as broken:
                findings.append(broken.finding)
                if self.is_hung:
                    break
        return findings

    def make(self) -> BaseEnvironment:
        what = "spawn()" if self.spawns_instance else "making the environment"
        env: BaseEnvironment = self.call(what, self.factory)
        self.made.append(env)
        return env

    def reset(self, env: BaseEnvironment, seed: int) -> str:
        if self.tasks:
            env.task = dict(self.tasks[seed % len(self.tasks)])

        async def begin() -> str:
            if id(env) in self._opened:  # the tools of the environment's earlier episode
                await self._opened.pop(id(env))[2].aclose()
            return await reset_environment(env, seed)

        start = time.perf_counter()
        observation: str = self.call("reset()", begin)
        self.reset_seconds.append(time.perf_counter() - start)
        return observation

    def step(self, env: BaseEnvironment, action: str) -> StepResult:
        start = time.perf_counter()
        result: StepResult = self.call(f"step({action!r:.60})", self._take_turn, env, action)
        self.step_seconds.append(time.perf_counter() - start)
        return result

    async def _take_turn(self, env: BaseEnvironment, text: str) -> StepResult:
        """Plays a turn as an episode does: tool calls are executed, any other text is a step."""
        if self.tools is None and not env.get_tools():
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
            return await step_environment(env, text)
        turn = StepResult(parsed.malformed or "", 0.0, terminated=False, truncated=False, info={})
        is_invalid = parsed.malformed is not None
        for call in parsed.calls:
            result = await registry.execute_async(call, context)
            if result.failure is ToolFailure.ENVIRONMENT:
                raise EnvironmentFault(result.text)
            is_invalid |= result.failure in (ToolFailure.UNKNOWN_TOOL, ToolFailure.BAD_ARGUMENTS)
            turn.observation += f"{result.text}\n"
            if result.step is not None:
                turn.reward += result.step.reward
                turn.info |= result.step.info
                turn.terminated, turn.truncated = result.step.terminated, result.step.truncated
            turn.terminated |= env.done
            if turn.done:
                break
        if is_invalid:
            turn.info["invalid_action"] = True
        return turn

    def describe(self, env: BaseEnvironment) -> str:
        text: str = self.call("get_state_description()", env.get_state_description)
        return text

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
        has_tools = self.tools is not None or bool(env.get_tools())
        turn_limit = LimitsConfig().turn_limit(env.max_steps, has_tools=has_tools)
        for number in range(1, max_turns + 1):
            action = choose(env)
            if action is None or time.monotonic() > deadline:
                return
            result = self.step(env, action)
            result.truncated |= number >= turn_limit and not result.terminated
            yield Transition(action, result, self.describe(env) if describe else None)
            if result.done:
                return

    def play(self, *args: Any, **options: Any) -> list[Transition]:
        """Plays one episode and returns all its transitions; the arguments are those of `turns`."""
        return list(self.turns(*args, **options))

    def random_actions(self, seed: int) -> Chooser:
        """Chooses `sample_action`, else the expert's action, else a general text."""
        # Other random numbers than the environment's own.
        rng = random.Random(f"actions {seed}")

        def choose(env: BaseEnvironment) -> str:
            action = self.offered(env, "sample_action", rng)
            action = self.expert_actions(env) if action is None else action
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
        problem = f"{type(env).__name__}.{method}() returned {action!r:.60}"
        fix = f"Let {method}() return the action as the agent would write it: `return str(action)`."
        check = method.replace("_", "-")
        raise BrokenCallError(Finding("error", check, f"{problem}, expected a str or None", fix))

    def close_all(self) -> Iterator[Finding]:
        """Closes what was created, twice, as it may happen in training."""
        environments, self.made = self.made, []

        async def close_tools() -> None:
            while self._opened:
                await self._opened.popitem()[1][2].aclose()

        self.call("closing the tools", close_tools)
        for when in ("", " the second time"):
            for env in environments:
                try:
                    self.call("close()", env.close)
                except BrokenCallError as broken:
                    fix = (
                        "Let close() be called at any time, also twice: "
                        "`if self.x is not None: self.x.close(); self.x = None`."
                    )
                    yield Finding("error", "close", broken.finding.message + when, fix)
                    return


def replayed(transitions: Iterable[Transition]) -> Chooser:
    """Repeats the actions of an earlier episode."""
    actions = iter([turn.action for turn in transitions if turn.action is not None])
    return lambda _env: next(actions, None)


def _failed_call(what: str, error: BaseException) -> Finding:
    if not isinstance(error, EnvironmentFault):
        message = f"{what} raised {explain(error)}"
        fix = (
            "Fix that line. Where only the action can be at fault, return {'invalid_action': True} "
            "as the info instead of raising."
        )
        if what == "reset()" and "NoneType" in message:
            fix = f"{NO_TASK} `check-env ... --dataset rows.jsonl`, check_env(dataset=rows)."
        return Finding("error", "exceptions", message, fix)
    # An error of the driver: up to its "expected ..." it is the problem, the rest is the fix.
    problem, expected, rest = str(error).partition("expected ")
    kind, _, fix = rest.partition(". ")
    check = "step" if what.startswith("step(") else what.removesuffix("()")
    return Finding("error", check, f"{problem}{expected}{kind}".rstrip("."), fix or "See above.")


def _global_random_states() -> dict[str, object]:
    states: dict[str, object] = {"random": random.getstate()}
    if "numpy.random" in sys.modules:
        state = sys.modules["numpy.random"].get_state(legacy=False)
        states["numpy.random"] = pickle.dumps(state)
    return states
