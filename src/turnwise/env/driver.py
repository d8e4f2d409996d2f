"""Calls `reset` and `step` of an environment, seeds it, and checks what it returns.

Episodes, the checker, `turnwise play` and the scripted players all use `reset_environment` and
`step_environment`, so that errors of an environment are detected in one place.
"""

import contextlib
import inspect
import math
from collections.abc import Callable, Coroutine, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from turnwise.deadlines import call_with_deadline, run_sync
from turnwise.env.base import BaseEnvironment
from turnwise.errors import EnvironmentFault
from turnwise.types import NotText, StepResult, read_content
from turnwise.user_code import definition_note

T = TypeVar("T")


async def reset_environment(env: BaseEnvironment, seed: int | None = None) -> str:
    """Starts an episode and returns the first observation.

    The environment gets the seed by `seed()`, and as `reset(seed=...)` if `reset` takes it.
    """
    env._done = False
    env.step_count = 0
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
    result: object = env.step(action)
    if type(result) is not tuple and inspect.isawaitable(result):  # isawaitable is slow
        result = await result
    if env.step_count == count_before:
        # The environment does not count its steps itself.
        env.step_count = count_before + 1
    return checked_step(env, result)


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
    method = getattr(env.reset, "__func__", None)
    return _names_seed(env.reset) if method is None else _method_names_seed(method)


def _names_seed(reset: Callable[..., Any]) -> bool:
    parameters = inspect.signature(reset).parameters.values()
    return any(p.name == "seed" or p.kind is p.VAR_KEYWORD for p in parameters)


_method_names_seed = lru_cache(maxsize=256)(_names_seed)  # inspecting takes longer than a reset


def checked_step(env: BaseEnvironment, result: object) -> StepResult:
    """Returns the `StepResult` of what `step` returned; raises an error if it is invalid."""
    if not isinstance(result, (tuple, list)) or len(result) != 4:
        got = f"{len(result)} values" if isinstance(result, (tuple, list)) else _kind(result)
        fix = "Return (observation, reward, done, info)."
        if isinstance(result, tuple) and len(result) == 5:
            fix += " For a Gymnasium environment use turnwise.env.GymnasiumEnvironment."
        if result is None:
            fix += " Does every path end in a return?"
        raise _fault(env, "step", f"returned {got}, expected 4 values. {fix}")
    observation, reward, done, info = result
    observation = _checked_observation(env, "step", observation)
    try:
        # float("1.5") would work, and hide that a reward is text.
        number = None if isinstance(reward, str | bytes) else float(reward)
    except (TypeError, ValueError):
        number = None
    if number is None:
        fix = (
            "Convert it with float(...); return 0.0 where nothing was earned; await what is async."
        )
        raise _fault(env, "step", f"returned a reward of {_kind(reward)}, expected a number. {fix}")
    if not math.isfinite(number):
        fix = "Look for a division by zero or a logarithm of zero in the reward."
        raise _fault(env, "step", f"returned the reward {number}, expected a finite number. {fix}")
    if not isinstance(info, dict | None):
        problem = f"returned info of {_kind(info)}, expected a dict. Return {{}} for none."
        raise _fault(env, "step", problem)
    # numpy's bool_ is not a bool; a 0 or 1 is taken too, a list or a string is a mistake.
    if isinstance(done, str | bytes | list | tuple | dict) or done not in (0, 1):
        fix = "Return (observation, reward, done, info) in this order, done a bool."
        problem = f"returned done={done!r:.80}, expected True or False. {fix}"
        raise _fault(env, "step", problem)
    # A copy without the methods of a subclass, which the environment cannot change later.
    info = dict(info or {})
    over = bool(done)
    cut = bool(info.get("truncated", False))
    out_of_steps = not over and env.step_count >= env.max_steps
    return StepResult(observation, number, over and not cut, cut or out_of_steps, info)


def _checked_observation(env: BaseEnvironment, method: str, observation: object) -> str:
    if isinstance(observation, str):
        return observation if type(observation) is str else str.__str__(observation)
    parts = observation if isinstance(observation, list) else []
    if parts and all(isinstance(part, Mapping) for part in parts):
        try:
            return read_content(parts)
        except NotText as error:
            fix = "Describe it in words."
            raise _fault(env, method, f"returned {error}. {fix}") from None
    fix = "Describe the state in words, or return json.dumps(...) of it."
    if observation is None:
        fix = 'Return what the agent reads next, "" if there is nothing.'
    elif method == "reset" and isinstance(observation, tuple):
        fix = "Return the observation alone, without an info."
    elif inspect.isawaitable(observation):
        fix = "Put await before the call that makes it."
    raise _fault(
        env, method, f"returned an observation of {_kind(observation)}, expected str. {fix}"
    )


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
