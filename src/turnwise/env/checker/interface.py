"""Checks of the interface: creation, signatures, and one episode. All other checks need these."""

from __future__ import annotations

import inspect
import random
import re
from collections.abc import Iterator

from turnwise.deadlines import call_with_deadline, run_sync
from turnwise.env.base import BaseEnvironment
from turnwise.env.checker.harness import (
    GENERAL_TEXTS,
    BrokenCallError,
    Choice,
    Harness,
)
from turnwise.env.checker.report import Finding, Level, shorten
from turnwise.env.driver import accepts_seed
from turnwise.errors import EnvironmentFault, TurnwiseError

DEFINITIONS = {
    "reset": "def reset(self) -> str:",
    "step": "def step(self, action: str) -> tuple[str, float, bool, dict]:",
    "get_state_description": "def get_state_description(self) -> str:",
    "get_prompt_prefix": "def get_prompt_prefix(self) -> str:",
    "sample_action": "def sample_action(self, rng: random.Random) -> str:",
    "expert_action": "def expert_action(self) -> str | None:",
    "seed": "def seed(self, seed: int) -> None:",
    "close": "def close(self) -> None:",
}
MAY_BE_ASYNC = {"reset", "step"}


def check_source(source: object) -> list[Finding]:
    """Checks the source before anything is created."""
    is_class = isinstance(source, type)
    kind = source if isinstance(source, type) else type(source)
    is_factory = callable(source) and not is_class
    if issubclass(kind, BaseEnvironment) or isinstance(source, str) or is_factory:
        return []
    given = "the class" if is_class else "an instance of"
    if {base.__module__.partition(".")[0] for base in kind.__mro__} & {"gym", "gymnasium"}:
        fix = "Register it with Gymnasium and pass its name: check_env('gym:MyEnv-v0')."
    else:
        fix = f"Write `class {kind.__name__}(BaseEnvironment):` and pass that class."
    return [
        Finding.error(
            "base-class",
            f"got {given} {kind.__qualname__}, expected one derived from turnwise.BaseEnvironment",
            fix,
        )
    ]


def check_make(harness: Harness) -> Iterator[Finding]:
    """An environment can be created."""
    try:
        harness.make()
    except BrokenCallError as broken:
        error, message = broken.error, broken.finding.message
        if isinstance(error, TurnwiseError) and not isinstance(error, EnvironmentFault):
            raise error from None  # a wrong setting or a missing package is an error of the caller
        if isinstance(error, EnvironmentFault):
            fix = "Let the factory return an object whose class derives from BaseEnvironment."
            yield Finding.error("base-class", str(error).partition(". ")[0], fix)
        elif isinstance(error, TypeError) and "abstract" in str(error):
            missing = [name for name in DEFINITIONS if re.search(rf"\b{name}\b", str(error))]
            for name in missing:
                fix = f"Add the method `{DEFINITIONS[name]}` to the class."
                yield Finding.error("signature", f"the class has no {name}()", fix)
        elif isinstance(error, AttributeError) and "'rng'" in str(error):
            fix = "Delete the line `self.rng = ...`: BaseEnvironment has a self.rng, and seeds it."
            yield Finding.error("signature", message, fix)
        elif harness.spawns_instance and error is not None:
            yield spawn_failed("error", message)
        else:
            raise


def spawn_failed(level: Level, message: str) -> Finding:
    return Finding(
        level,
        "spawn",
        f"{message}; a copy for each episode cannot be made from an instance",
        "Pass the class instead of an instance, or make what cannot be copied in reset(), or add "
        "`def spawn(self): return type(self)(self.config)`.",
    )


def check_signatures(harness: Harness) -> Iterator[Finding]:
    """Every method can be called as turnwise calls it."""
    env = harness.make()
    who = type(env).__name__
    for name, definition in DEFINITIONS.items():
        method = getattr(env, name)
        if not callable(method):
            yield Finding.error(
                "signature",
                f"{who}.{name} is {shorten(method)}, expected a method: it hides the method "
                f"{name}()",
                f"Give the attribute another name: `self.own_{name} = ...`.",
            )
        elif not _takes_the_arguments(env, name):
            yield Finding.error(
                "signature",
                f"{who} has {name}{inspect.signature(method)}, expected `{definition}`",
                f"Write `{definition}`; give any other argument a default.",
            )
        elif inspect.iscoroutinefunction(method) and name not in MAY_BE_ASYNC:
            yield Finding.error(
                "signature",
                f"{who}.{name} is async, expected a plain method",
                f"Write `{definition}`; only reset and step may be `async def`.",
            )


def _takes_the_arguments(env: BaseEnvironment, name: str) -> bool:
    arguments: dict[str, tuple[object, ...]] = {
        "step": ("an action",),
        "sample_action": (random.Random(),),
        "seed": (0,),
    }
    keywords = {"seed": 0} if name == "reset" and accepts_seed(env) else {}
    try:
        inspect.signature(getattr(env, name)).bind(*arguments.get(name, ()), **keywords)
    except TypeError:
        return False
    return True


def check_max_steps(harness: Harness) -> Iterator[Finding]:
    """`max_steps` is a positive integer."""
    limit: object = harness.make().max_steps
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        yield Finding.error(
            "max-steps",
            f"max_steps is {shorten(limit)}, expected a whole number of at least 1",
            "Write `max_steps = 20` in the class, or leave it out for the default of 10.",
        )


def check_reset(harness: Harness) -> Iterator[Finding]:
    """`reset` returns a text that is not empty."""
    env = harness.make()
    try:
        observation = harness.reset(env, harness.seed)
    except BrokenCallError as broken:
        if "type tuple" not in broken.finding.message:
            raise
        yield Finding.error(
            "reset",
            f"{type(env).__name__}.reset() returned a tuple, expected only the text that the "
            "agent reads first (the pair (observation, info) is Gymnasium's form)",
            "Write `return observation` in reset(), without the info.",
        )
        return
    if not observation.strip():
        yield Finding.warning(
            "reset",
            f"{type(env).__name__}.reset() returned {observation!r}, expected a text: the agent "
            "has nothing to answer",
            "Return the task or the first state, for example `return "
            "self.get_state_description()`.",
        )


def check_texts(harness: Harness) -> Iterator[Finding]:
    """The state description and the prompt are texts."""
    env = harness.make()
    harness.reset(env, harness.seed)
    texts: dict[str, object] = {
        "state-description": harness.describe(env),
        "prompt-prefix": harness.call("get_prompt_prefix()", env.get_prompt_prefix),
    }
    for check, text in texts.items():
        if not isinstance(text, str):
            method = f"get_{check.replace('-', '_')}"
            yield Finding.error(
                check,
                f"{type(env).__name__}.{method}() returned {shorten(text)}, expected a str",
                f"Let {method}() return a text, for example `return str(...)`.",
            )


def check_first_episode(harness: Harness) -> Iterator[Finding]:
    """One episode can be played, with observations that are not empty."""
    env = harness.make()
    harness.texts = _answered_texts(harness)
    turns = harness.play(env, harness.seed)
    for turn in turns[1:]:
        if not turn.observation.strip() and not turn.done:
            yield Finding.warning(
                "step",
                f"{type(env).__name__}.step({shorten(turn.action)}) returned the observation "
                f"{turn.observation!r} though the episode continues, expected a text",
                "Say what happened, or `return self.get_state_description(), reward, done, info`.",
            )
            return


def _answered_texts(harness: Harness) -> list[str]:
    """Returns the general texts that `step` accepts; if there is none, that is the finding."""
    answered: list[str] = []
    for text in GENERAL_TEXTS:
        env = harness.make()
        harness.reset(env, harness.seed)
        if harness.sampled(env) is not None or harness.expert_actions(env) is not None:
            return list(GENERAL_TEXTS)  # none of them will be needed
        try:
            harness.step(env, Choice(text, trusted=False))
            answered.append(text)
        except BrokenCallError as broken:
            is_last = text == GENERAL_TEXTS[-1]
            if broken.finding.check != "odd-actions" or (is_last and not answered):
                raise
    return answered


def check_threads(harness: Harness) -> Iterator[Finding]:
    """Calls may come from different threads, as in training."""
    env = harness.make()
    turns = harness.turns(env, harness.seed, max_turns=2)
    try:
        while run_sync(
            call_with_deadline(lambda: next(turns, None), timeout=None, waiting_for="a turn")
        ):
            continue
    except BrokenCallError as broken:
        yield Finding.error(
            "threads",
            f"called from another thread than the one that made it, {broken.finding.message}",
            "Use objects that any thread may use, for example `sqlite3.connect(path, "
            "check_same_thread=False)`.",
        )
