"""The actions of a check: the environment's own, or general texts."""

from __future__ import annotations

import random
from collections.abc import Iterable

from turnwise.env.base import BaseEnvironment
from turnwise.env.checker.harness import (
    BrokenCallError,
    Choice,
    Chooser,
    Harness,
    Transition,
)
from turnwise.env.checker.report import Finding, shorten


def random_actions(harness: Harness, seed: int) -> Chooser:
    """Chooses `sample_action`, else the expert's action, else a general text."""
    # Other random numbers than the environment's own.
    rng = random.Random(f"actions {seed}")
    offers: dict[str, tuple[object, ...]] = {"sample_action": (rng,), "expert_action": ()}

    def choose(env: BaseEnvironment) -> Choice:
        for method, arguments in list(offers.items()):
            action = offered(harness, env, method, *arguments)
            if action is not None:
                return Choice(action)
            del offers[method]  # the environment does not have it
        return Choice(rng.choice(harness.texts), trusted=False)

    return choose


def expert_actions(harness: Harness) -> Chooser:
    """Chooses the expert's actions, as long as there are any."""

    def choose(env: BaseEnvironment) -> Choice | None:
        action = offered(harness, env, "expert_action")
        return None if action is None else Choice(action)

    return choose


def replayed(turns: Iterable[Transition]) -> Chooser:
    """Repeats the actions of an earlier episode."""
    actions = iter([turn.action for turn in turns if turn.action is not None])

    def choose(_env: BaseEnvironment) -> Choice | None:
        action = next(actions, None)
        return None if action is None else Choice(action)

    return choose


def offers_actions(harness: Harness, env: BaseEnvironment) -> bool:
    """Whether the environment, just reset, offers actions."""
    sample = offered(harness, env, "sample_action", random.Random(harness.seed))
    return sample is not None or offered(harness, env, "expert_action") is not None


def offered(harness: Harness, env: BaseEnvironment, method: str, *args: object) -> str | None:
    """Returns the action of `sample_action` or `expert_action`; a wrong type is a finding."""
    action: object = harness.call(f"{method}()", getattr(env, method), *args)
    if action is None or isinstance(action, str):
        return action
    raise BrokenCallError(
        Finding.error(
            method.replace("_", "-"),
            f"{type(env).__name__}.{method}() returned {shorten(action)}, expected a str or None",
            f"Let {method}() return the action as the agent would write it: `return str(action)`.",
        )
    )
