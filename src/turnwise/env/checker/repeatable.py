"""Checks that an episode depends on its seed and its actions, and on nothing else."""

from __future__ import annotations

import copy
from collections.abc import Iterator

from turnwise.env.base import BaseEnvironment
from turnwise.env.checker.harness import BrokenCallError, Harness, Transition, replayed
from turnwise.env.checker.interface import spawn_failed
from turnwise.env.checker.report import Finding, shorten


def first_difference(one: list[Transition], other: list[Transition]) -> str | None:
    """Describes the first difference of two episodes with the same actions; None if equal."""
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        when = f"after turn {index} ({shorten(a.action, 30)})" if index else "after reset()"
        parts: dict[str, tuple[object, object]] = {
            "observation": (a.observation, b.observation),
            "reward": (a.reward, b.reward),
            "end of the episode": (a.done, b.done),
            "state description": (a.state, b.state),
            **{
                f"info[{key!r}]": (a.info.get(key), b.info.get(key))
                for key in ("success", "invalid_action", "truncated")
            },
        }
        for part, (first, second) in parts.items():
            if first != second and (part != "state description" or None not in (first, second)):
                return f"{when} the {part} was {shorten(first)} and then {shorten(second)}"
    return None


def check_state_is_stable(harness: Harness) -> Iterator[Finding]:
    """Two descriptions of one state are the same text."""
    env = harness.make()
    harness.reset(env, harness.seed)
    first, second = harness.describe(env), harness.describe(env)
    if first != second:
        yield Finding.error(
            "state-description",
            "get_state_description() called twice in a row gave two texts: "
            f"{shorten(first)} and then {shorten(second)}",
            "Build the text from the state alone: no counter, no time and no random number in it.",
        )


def check_seeds(harness: Harness) -> Iterator[Finding]:
    """The same seed and actions give the same episode, without global generators."""
    differences: dict[int, str] = {}
    before = class_attributes(harness.make())
    for seed in harness.seeds:
        env = harness.make()
        turns = harness.play(env, seed)
        again = harness.play(harness.make(), seed, replayed(turns))
        if difference := first_difference(turns, again):
            differences[seed] = difference
    touched = harness.drawn_from
    if not differences:
        if touched:
            call, module = next(iter(touched.items()))
            message = f"{call} draws from or seeds the global module {module}, which all "
            yield Finding.warning(
                "global-random",
                f"{message}episodes share",
                f"Use `self.rng` instead of `{module}` there, for example `self.rng.randint(1, 6)`"
                "; it is seeded before each reset.",
            )
        return
    seed, difference = next(iter(differences.items()))
    message = f"seed {seed} gave two different episodes: {difference}"
    if touched:
        call, module = next(iter(touched.items()))
        fix = f"In {call} write `self.rng` instead of `{module}`: `self.rng.random()`."
        yield Finding.error("seeds", message, fix)
    elif changed := changed_class_attributes(before, harness.make()):
        yield shared_class_attribute(message, changed)
    elif list(differences) == [0] and harness.num_episodes > 1:
        fix = "Seed 0 is a seed too: write `if seed is not None:` instead of `if seed:`."
        yield Finding.error("seeds", message, fix)
    else:
        fix = (
            "Take every random number from `self.rng` (`self.rng.random()`), which is seeded "
            "before each reset; use no time, no id() and no global variables."
        )
        yield Finding.error("seeds", message, fix)


def check_state_is_read_only(harness: Harness) -> Iterator[Finding]:
    """Describing the state does not change the episode."""
    turns = harness.play(harness.make(), harness.seed)
    unseen = harness.play(harness.make(), harness.seed, replayed(turns), describe=False)
    if difference := first_difference(unseen, turns):
        yield Finding.error(
            "state-description",
            f"calling get_state_description() changes the episode: {difference}",
            "Only read in get_state_description(): assign to no attribute and draw no random "
            "number there.",
        )


def check_leaked_state(harness: Harness) -> Iterator[Finding]:
    """Episodes on a used object are the same as on fresh ones, also after an early reset."""
    expected = {seed: harness.play(harness.make(), seed) for seed in harness.seeds}
    used = harness.make()
    harness.play(used, harness.seed, max_turns=1)
    for seed in [*harness.seeds, harness.seed]:
        try:
            turns = harness.play(used, seed, replayed(expected[seed]))
            difference = first_difference(expected[seed], turns)
        except BrokenCallError as broken:
            difference = broken.finding.message
        if difference:
            yield _leak(harness, used, difference)
            return


def _leak(harness: Harness, used: BaseEnvironment, difference: str) -> Finding:
    """Names the attributes that an earlier episode changed, if they can be found."""
    fresh = harness.make()
    try:
        harness.reset(used, harness.seed)
        harness.reset(fresh, harness.seed)
        left_over = changed_attributes(fresh, used)
    except BrokenCallError:
        left_over = {}  # the failing reset is finding enough
    lines = " and ".join(f"`self.{name} = {text}`" for name, text in left_over.items())
    return Finding.error(
        "leaked-state",
        "an episode on a used object is not the one that a fresh object gives: " + difference,
        f"Write {lines} in reset()."
        if lines
        else "Set every attribute that an episode changes anew in reset(): `self.x = ...`.",
    )


def check_shared_state(harness: Harness) -> Iterator[Finding]:
    """Two environments played at the same time do not affect each other."""
    first = harness.make()
    before = class_attributes(first)
    alone = harness.play(first, harness.seed)
    if difference := _disturbance(harness, alone, harness.make(), harness.make()):
        message = f"two environments played at the same time disturb each other: {difference}"
        if changed := changed_class_attributes(before, first):
            yield shared_class_attribute(message, changed)
        else:
            fix = (
                "Keep what an episode changes in attributes set in reset() (`self.x = ...`), not "
                "in global variables, default arguments or objects from the config."
            )
            yield Finding.error("shared-state", message, fix)


def check_spawn(harness: Harness) -> Iterator[Finding]:
    """`spawn` returns another environment that shares nothing with the first."""
    env = harness.make()
    try:
        spawned: object = harness.call("spawn()", env.spawn)
    except BrokenCallError as broken:
        if broken.error is None:
            raise
        yield spawn_failed("warning", broken.finding.message + _uncopyable(env))
        return
    fix = "Write `def spawn(self): return type(self)(self.config)`, or delete your spawn()."
    if spawned is env or not isinstance(spawned, BaseEnvironment):
        got = "the object itself" if spawned is env else shorten(spawned)
        message = f"spawn() returned {got}, expected a new environment"
        yield Finding.error("spawn", message, fix)
        return
    harness.made.append(spawned)
    alone = harness.play(harness.make(), harness.seed)
    if difference := _disturbance(harness, alone, env, spawned):
        message = f"an environment and its spawn() disturb each other: {difference}"
        yield Finding.error("spawn", message, fix)


def _disturbance(
    harness: Harness, alone: list[Transition], one: BaseEnvironment, other: BaseEnvironment
) -> str | None:
    """Plays the same episode in both, in alternating turns; returns the difference to alone."""
    plays = [harness.turns(env, harness.seed, replayed(alone)) for env in (one, other)]
    transcripts: list[list[Transition]] = [[], []]
    try:
        for _ in alone:
            for play, transcript in zip(plays, transcripts, strict=True):
                if (turn := next(play, None)) is not None:
                    transcript.append(turn)
    except BrokenCallError as broken:
        return broken.finding.message
    return first_difference(alone, transcripts[0]) or first_difference(alone, transcripts[1])


def class_attributes(env: BaseEnvironment) -> dict[str, str]:
    """Returns the data attributes of the user's own classes, as text."""
    own = type(env).__mro__[: type(env).__mro__.index(BaseEnvironment)]
    return {
        f"{kind.__name__}.{name}": repr(value)
        for kind in own
        for name, value in vars(kind).items()
        if not name.startswith(("__", "_abc_")) and not callable(value)
    }


def changed_class_attributes(before: dict[str, str], env: BaseEnvironment) -> list[str]:
    return [name for name, text in class_attributes(env).items() if before.get(name) != text]


def changed_attributes(fresh: BaseEnvironment, used: BaseEnvironment) -> dict[str, str]:
    """Returns the attributes that differ, with the fresh value, or `...` if it is long."""
    before, after = (
        {name: repr(value) for name, value in vars(env).items()} for env in (fresh, used)
    )
    return {
        name: before[name] if name in before and len(before[name]) < 30 else "..."
        for name, text in after.items()
        if before.get(name) != text and " at 0x" not in text
    }


def shared_class_attribute(message: str, changed: list[str]) -> Finding:
    name = changed[0].rpartition(".")[2]
    return Finding.error(
        "shared-state",
        f"{message}; the class attribute {changed[0]}, which all environments share, was changed",
        f"Make it anew for each episode: `self.{name} = ...` in reset().",
    )


def _uncopyable(env: BaseEnvironment) -> str:
    for name, value in vars(env).items():
        try:
            copy.deepcopy(value)
        except Exception as error:  # any error of the user's __deepcopy__ names the attribute
            return f", because of self.{name} ({type(error).__name__})"
    return ""
