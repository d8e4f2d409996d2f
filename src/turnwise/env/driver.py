"""Calls `reset` and `step` of an environment, seeds it, and checks what it returns.

Episodes, the checker, `turnwise play` and the scripted players all use `reset_environment` and
`step_environment`, so that errors of an environment are detected in one place.
"""

import contextlib
import inspect
import math
import numbers
from collections.abc import Callable, Coroutine, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from turnwise.deadlines import call_with_deadline, run_sync
from turnwise.env.base import BaseEnvironment
from turnwise.errors import EnvironmentFault
from turnwise.types import NotText, StepResult, read_content
from turnwise.user_code import definition_note

T = TypeVar("T")
_FLAGS = ("success", "invalid_action", "truncated")
"""What an `info` may say about a step, as True or False."""


async def reset_environment(env: BaseEnvironment, seed: int | None = None) -> str:
    """Starts an episode and returns the first observation.

    The environment gets the seed by `seed()`, and as `reset(seed=...)` if `reset` takes it.
    """
    env._done = False
    env.step_count = 0
    max_steps: object = env.max_steps
    if not isinstance(max_steps, numbers.Real) or not float(max_steps) >= 1:
        problem = f"max_steps is {max_steps!r:.60}, expected a whole number of at least 1"
        raise EnvironmentFault(f"{type(env).__name__}.{problem}")
    if seed is not None:
        env.seed(seed)
    arguments = {"seed": seed} if accepts_seed(env) else {}
    observation: object = env.reset(**arguments)
    if type(observation) is not str and inspect.isawaitable(observation):
        observation = await observation
    return _checked_observation(env, "reset", observation)


async def step_environment(env: BaseEnvironment, action: str) -> StepResult:
    """Takes a step and checks its result."""
    count_before = env.step_count
    result: Any = env.step(action)
    if type(result) is not tuple and inspect.isawaitable(result):  # isawaitable is slow
        result = await result
    if env.step_count == count_before:
        # The environment does not count its steps itself.
        env.step_count = count_before + 1
    if not isinstance(result, (tuple, list)) or len(result) != 4:
        got = f"{len(result)} values" if isinstance(result, (tuple, list)) else _kind(result)
        problem = (
            f"returned {got}, expected 4 values. Return (observation, reward, done, info) on every "
            "path; for a Gymnasium environment use turnwise.env.GymnasiumEnvironment."
        )
        raise _fault(env, "step", problem)
    observation, reward, done, info = result
    observation = _checked_observation(env, "step", observation)
    try:
        # float("1.5") would work, and hide that a reward is text.
        number = None if isinstance(reward, str | bytes) else float(reward)
    except (TypeError, ValueError):
        number = None
    if number is None or not math.isfinite(number):
        bad = _kind(reward) if number is None else str(number)
        fix = "Convert it with float(...); await what is async; look for a division by zero."
        raise _fault(env, "step", f"returned a reward of {bad}, expected a finite number. {fix}")
    if not isinstance(info, dict | None):
        problem = f"returned info of {_kind(info)}, expected a dict. Return {{}} for none."
        raise _fault(env, "step", problem)
    info = dict(info or {})
    for name, flag in {"done": done, **{key: info.get(key) or 0 for key in _FLAGS}}.items():
        # numpy's bool_ is not a bool; a 0 or 1 is taken too, a list or a string is a mistake.
        if flag not in (0, 1):
            fix = "Return (observation, reward, done, info) in this order, flags as a bool."
            problem = f"returned {name}={flag!r:.80}, expected True or False. {fix}"
            raise _fault(env, "step", problem)
    cut = bool(info.get("truncated", False))
    out_of_steps = not done and env.step_count >= env.max_steps
    return StepResult(observation, number, bool(done) and not cut, cut or out_of_steps, info)


def finish_without_loop(work: Coroutine[Any, Any, T], call: str) -> T:
    """Runs a coroutine that never waits; raises an error if it does."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    raise EnvironmentFault(f"{call} returns something to await. Write it as async def.")


def accepts_seed(env: BaseEnvironment) -> bool:
    """Whether `reset` takes `seed`."""
    return _names_seed(getattr(env.reset, "__func__", env.reset))


@lru_cache(maxsize=256)  # inspecting takes longer than a reset
def _names_seed(reset: Callable[..., Any]) -> bool:
    parameters = inspect.signature(reset).parameters.values()
    return any(p.name == "seed" or p.kind is p.VAR_KEYWORD for p in parameters)


def _checked_observation(env: BaseEnvironment, method: str, observation: object) -> str:
    if isinstance(observation, str):
        return observation if type(observation) is str else str.__str__(observation)
    if isinstance(observation, list) and observation and isinstance(observation[0], Mapping):
        try:
            return read_content(observation)
        except NotText as error:
            raise _fault(env, method, f"returned {error}. Describe it in words.") from None
    fix = "Describe the state in words, or return json.dumps(...) of it."
    if method == "reset" and isinstance(observation, tuple):
        fix = "Return the observation alone, without an info."
    problem = f"returned an observation of {_kind(observation)}, expected str. {fix}"
    raise _fault(env, method, problem)


def _fault(env: BaseEnvironment, method: str, problem: str) -> EnvironmentFault:
    """Returns the error, with a note on where the user's method is defined."""
    fault = EnvironmentFault(f"{type(env).__name__}.{method}() {problem}")
    if (note := definition_note(getattr(env, method))) is not None:
        fault.add_note(note)
    return fault


def _kind(value: object) -> str:
    return "None" if value is None else f"type {type(value).__name__}"


def close_environment(env: BaseEnvironment, timeout: float | None = 10.0) -> None:
    """Closes an environment outside of an episode; errors and timeouts are ignored."""
    with contextlib.suppress(Exception):
        run_sync(call_with_deadline(env.close, timeout=timeout, waiting_for="close"))
