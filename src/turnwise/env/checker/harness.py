"""`Harness` plays environments for the checks, watches every call and reports failures.

`ToolSteps` carries out their turns: tool calls, or steps.
"""

from __future__ import annotations

import asyncio
import inspect
import pickle
import random
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from turnwise.env.base import BaseEnvironment
from turnwise.env.catalog import EnvironmentFactory
from turnwise.env.checker.report import Finding, odd_action, other_parser, raised, shorten
from turnwise.env.driver import reset_environment, step_environment
from turnwise.errors import EnvironmentFault
from turnwise.tools.base import marked_tools
from turnwise.tools.context import ToolContext
from turnwise.tools.parsers import ActionParser, get_parser, other_format
from turnwise.tools.registry import ToolRegistry
from turnwise.tools.types import ToolFailure
from turnwise.types import StepResult

T = TypeVar("T")

GENERAL_TEXTS = ("yes", "no", "1", "42", "help", "look around", "go north", "take it", "A")
"""Actions for environments that offer none of their own."""

MAX_TURNS = 100
"""Episodes longer than this are compared by their first turns only."""


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
    observation: str
    state: str | None = None
    """The state description, if it was requested."""
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
"""Returns the next action; None ends the episode."""


class ToolSteps:
    """Acts in environments as an episode does: calls are executed, other texts are a step.

    `tools` are added to the environment's own. A call that cannot be read, or that names no tool,
    is an invalid action.
    """

    def __init__(self, tools: ToolRegistry | None, parser: ActionParser | str) -> None:
        self._tools = tools
        self._parser = parser
        self._open: dict[int, tuple[ToolRegistry, ActionParser, ToolContext]] = {}
        self.called: list[str] = []
        """The tools that the last turn called."""
        self.other_format: str | None = None
        """The parser that reads a call in the last turn, where the one in use reads none."""

    async def begin(self, env: BaseEnvironment) -> None:
        """Closes the tools of the environment's earlier episode."""
        if id(env) in self._open:
            await self._open.pop(id(env))[2].aclose()

    async def step(self, env: BaseEnvironment, text: str) -> StepResult:
        """Carries out a turn."""
        self.called, self.other_format = [], None
        if self._tools is None and not marked_tools(env):
            return await step_environment(env, text)
        if id(env) not in self._open:
            registry = (ToolRegistry() if self._tools is None else self._tools).bind(env)
            parser = self._parser
            if isinstance(parser, str):
                parser = get_parser(parser, definitions=registry.definitions)
            self._open[id(env)] = (registry, parser, registry.open_context(env))
        registry, parser, context = self._open[id(env)]
        parsed = parser.parse(text)
        if parsed.is_empty:
            self.other_format = other_format(text, parser, registry.definitions)
            return await step_environment(env, text)
        turn = StepResult("", 0.0, terminated=False, truncated=False, info={})
        answers = []
        for call in parsed.calls:
            self.called.append(call.name)
            result = await registry.execute_async(call, context)
            answers.append(result.text)
            if result.failure is ToolFailure.ENVIRONMENT:
                raise EnvironmentFault(result.text)
            if result.failure in (ToolFailure.UNKNOWN_TOOL, ToolFailure.BAD_ARGUMENTS):
                turn.info = {**turn.info, "invalid_action": True}
            if result.step is not None:
                turn.reward += result.step.reward
                turn.info = {**turn.info, **result.step.info}
                turn.terminated, turn.truncated = result.step.terminated, result.step.truncated
            if turn.done:
                break
        if parsed.malformed is not None:
            answers.append(f"A call could not be read: {parsed.malformed}")
            turn.info = {**turn.info, "invalid_action": True}
        turn.observation = "\n\n".join(answers)
        turn.terminated = turn.terminated or env.done
        return turn

    async def close(self) -> None:
        """Closes all tools."""
        while self._open:
            await self._open.popitem()[1][2].aclose()


@dataclass
class Harness:
    """Creates environments and plays them; keeps what it created and how long calls took."""

    factory: EnvironmentFactory
    seed: int
    num_episodes: int
    slow_after: float
    timeout: float
    spawns_instance: bool
    """Whether the user passed an instance, so that every environment is a copy of it."""
    tasks: Sequence[Mapping[str, Any]] | None
    """Rows of a dataset; an episode plays the row at its seed."""
    tool_steps: ToolSteps
    texts: list[str] = field(default_factory=lambda: list(GENERAL_TEXTS))
    """Those of the general texts that the environment answers."""
    made: list[BaseEnvironment] = field(default_factory=list)
    reset_seconds: list[float] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    drawn_from: dict[str, str] = field(default_factory=dict)
    """Calls that drew from a global generator, with its module: {"step()": "random"}."""
    waiting_for: tuple[str, float] | None = None
    """The current call, and the time by which it must return."""
    is_hung: bool = False
    """A call did not return; the thread that made it must stop."""

    def __post_init__(self) -> None:
        self.seeds = range(self.seed, self.seed + self.num_episodes)
        self._loop = asyncio.new_event_loop()

    def call(self, what: str, function: Callable[..., T], *args: Any) -> T:
        """Calls the environment; its exceptions become a `BrokenCallError`."""
        if self.is_hung:
            raise SystemExit  # ends the abandoned thread
        self.waiting_for = (what, time.monotonic() + self.timeout)
        try:
            with self._watch_global_random(what):
                return function(*args)
        except BaseException as error:  # sys.exit() in an environment is a finding too
            raise BrokenCallError(raised(what, error), error) from error
        finally:
            self.waiting_for = None

    def make(self) -> BaseEnvironment:
        what = "spawn()" if self.spawns_instance else "making the environment"
        env = self.call(what, self.factory)
        self.made.append(env)
        return env

    def reset(self, env: BaseEnvironment, seed: int) -> str:
        if self.tasks:
            env.task = dict(self.tasks[seed % len(self.tasks)])

        async def begin() -> str:
            await self.tool_steps.begin(env)
            return await reset_environment(env, seed)

        try:
            return self.call("reset()", lambda: self._timed(begin(), self.reset_seconds))
        except BrokenCallError as broken:
            if self.tasks or env.task is not None or not _reads_task(env):
                raise
            finding = Finding.error(
                "task",
                f"{broken.finding.message}; the environment reads self.task, and there is no "
                "dataset",
                "Give the rows that it is to play: `turnwise check-env ... --dataset rows.jsonl`, "
                "or in Python check_env(..., dataset=rows).",
            )
            raise BrokenCallError(finding, broken.error) from None

    def step(self, env: BaseEnvironment, choice: Choice) -> StepResult:
        def take() -> StepResult:
            return self._timed(self.tool_steps.step(env, choice.action), self.step_seconds)

        try:
            return self.call(f"step({shorten(choice.action)})", take)
        except BrokenCallError as broken:
            if choice.trusted and (parser := self.tool_steps.other_format) is not None:
                raise BrokenCallError(other_parser(choice.action, parser), broken.error) from None
            if not choice.trusted and broken.finding.check == "exceptions":
                raise BrokenCallError(odd_action(broken.finding.message), broken.error) from None
            raise

    def _timed(self, work: Coroutine[Any, Any, T], seconds: list[float]) -> T:
        start = time.perf_counter()
        result = self._loop.run_until_complete(work)
        seconds.append(time.perf_counter() - start)
        return result

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
        yield Transition(None, self.reset(env, seed), self.describe(env) if describe else None)
        for _ in range(max_turns):
            choice = choose(env)
            if choice is None or time.monotonic() > deadline:
                return
            result = self.step(env, choice)
            yield Transition(
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
        choose: Chooser | None = None,
        *,
        describe: bool = True,
        max_turns: int = MAX_TURNS,
    ) -> list[Transition]:
        """Plays one episode and returns all its transitions."""
        return list(self.turns(env, seed, choose, describe=describe, max_turns=max_turns))

    def random_actions(self, seed: int) -> Chooser:
        """Chooses `sample_action`, else the expert's action, else a general text."""
        # Other random numbers than the environment's own.
        rng = random.Random(f"actions {seed}")
        offers: dict[str, tuple[object, ...]] = {"sample_action": (rng,), "expert_action": ()}

        def choose(env: BaseEnvironment) -> Choice:
            for method, arguments in list(offers.items()):
                action = self.offered(env, method, *arguments)
                if action is not None:
                    return Choice(action)
                del offers[method]  # the environment does not have it
            return Choice(rng.choice(self.texts), trusted=False)

        return choose

    def expert_actions(self, env: BaseEnvironment) -> Choice | None:
        """Chooses the expert's action; None if there is none."""
        action = self.offered(env, "expert_action")
        return None if action is None else Choice(action)

    def sampled(self, env: BaseEnvironment) -> str | None:
        """Returns a random action; the same one in the same state."""
        return self.offered(env, "sample_action", random.Random(self.seed))

    def offered(self, env: BaseEnvironment, method: str, *args: object) -> str | None:
        """Returns the action of `sample_action` or `expert_action`; a wrong type is a finding."""
        action: object = self.call(f"{method}()", getattr(env, method), *args)
        if action is None or isinstance(action, str):
            return action
        problem = f"{type(env).__name__}.{method}() returned {shorten(action)}"
        fix = f"Let {method}() return the action as the agent would write it: `return str(action)`."
        check = method.replace("_", "-")
        raise BrokenCallError(Finding.error(check, f"{problem}, expected a str or None", fix))

    def close_all(self) -> list[Finding]:
        """Closes what was created, twice, as it may happen in training."""
        environments, self.made = self.made, []
        self.call(
            "closing the tools", lambda: self._loop.run_until_complete(self.tool_steps.close())
        )
        for time_called in ("", " the second time"):
            for env in environments:
                try:
                    self.call("close()", env.close)
                except BrokenCallError as broken:
                    finding = Finding.error(
                        "close",
                        broken.finding.message + time_called,
                        "Let close() be called at any time, also twice: `if self.x is not None: "
                        "self.x.close(); self.x = None`.",
                    )
                    return [finding]
        return []

    def shut(self) -> None:
        if not self._loop.is_running():  # a call that hangs may still run on it
            self._loop.close()

    @contextmanager
    def _watch_global_random(self, call: str) -> Iterator[None]:
        before = _global_random_states()
        try:
            yield
        finally:
            name = f"{call.partition('(')[0]}()" if "(" in call else call
            if name == "step()" and self.tool_steps.called:
                name = f"the tool {self.tool_steps.called[-1]}"
            for module, state in _global_random_states().items():
                # A module that the call imported has no earlier state to compare with.
                if before.get(module, state) != state:
                    self.drawn_from.setdefault(name, module)


def replayed(transitions: Iterable[Transition]) -> Chooser:
    """Repeats the actions of an earlier episode."""
    actions = iter([turn.action for turn in transitions if turn.action is not None])

    def choose(_env: BaseEnvironment) -> Choice | None:
        action = next(actions, None)
        return None if action is None else Choice(action)

    return choose


def _reads_task(env: BaseEnvironment) -> bool:
    try:
        return "self.task" in inspect.getsource(type(env))
    except (OSError, TypeError):  # typed at a prompt
        return False


def _global_random_states() -> dict[str, object]:
    states: dict[str, object] = {"random": random.getstate()}
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        states["numpy.random"] = pickle.dumps(numpy_random.get_state(legacy=False))
    return states
