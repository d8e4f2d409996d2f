"""`check_env`: plays an environment as training does, and reports what to fix."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from typing import Any

from turnwise.config import EnvironmentConfig
from turnwise.deadlines import in_daemon_thread
from turnwise.env.base import BaseEnvironment
from turnwise.env.catalog import EnvironmentFactory, EnvironmentSource, environment_factory
from turnwise.env.checker import behaviour, interface, repeatable
from turnwise.env.checker.harness import BrokenCallError, Harness
from turnwise.env.checker.report import CheckReport, Finding, explain, timed_out
from turnwise.env.checker.tool_steps import ToolSteps
from turnwise.errors import ConfigError, EnvironmentFault, TurnwiseError
from turnwise.tools import ActionParser, Tool, ToolRegistry

__all__ = ["CheckReport", "Finding", "check_env"]


@dataclass(frozen=True)
class Check:
    """One check, and when it is skipped."""

    name: str
    function: Callable[[Harness], Iterable[Finding]]
    unless: frozenset[str] = frozenset()
    """Skipped after findings of these checks, which it would only repeat."""
    is_needed: bool = False
    """Whether all later checks depend on it."""


_NOT_REPEATABLE = frozenset({"state-description", "seeds", "global-random", "shared-state"})
_LEAKED = frozenset({"leaked-state"})

# The order matters where a check relies on earlier ones; a new check is one line here.
CHECKS: tuple[Check, ...] = (
    Check("make", interface.check_make, is_needed=True),
    Check("signature", interface.check_signatures, is_needed=True),
    Check("max-steps", interface.check_max_steps, is_needed=True),
    Check("reset", interface.check_reset, is_needed=True),
    Check("texts", interface.check_texts, is_needed=True),
    Check("step", interface.check_first_episode, is_needed=True),
    Check("threads", interface.check_threads),
    Check("state-description", repeatable.check_state_is_stable),
    Check("seeds", repeatable.check_seeds, unless=_NOT_REPEATABLE),
    Check("read-only-state", repeatable.check_state_is_read_only, unless=_NOT_REPEATABLE),
    Check("leaked-state", repeatable.check_leaked_state, unless=_NOT_REPEATABLE),
    Check("shared-state", repeatable.check_shared_state, unless=_NOT_REPEATABLE),
    Check("spawn", repeatable.check_spawn, unless=_NOT_REPEATABLE | _LEAKED),
    Check("odd-actions", behaviour.check_odd_actions),
    Check("sample-action", behaviour.check_sample_action, unless=_LEAKED),
    Check("expert-action", behaviour.check_expert_action, unless=_LEAKED | {"sample-action"}),
    Check("termination", behaviour.check_termination, unless=_LEAKED | {"parser"}),
    Check("info", behaviour.check_info),
    Check("speed", behaviour.check_speed),
)


def check_env(
    env: EnvironmentSource,
    config: EnvironmentConfig | Mapping[str, Any] | None = None,
    *,
    dataset: Sequence[Mapping[str, Any]] | None = None,
    tools: ToolRegistry | Iterable[Tool | Callable[..., Any]] | None = None,
    parser: ActionParser | str = "auto",
    raise_on_error: bool = False,
    num_episodes: int = 5,
    seed: int = 0,
    slow_after: float = 0.1,
    timeout: float = 10.0,
) -> CheckReport:
    """Checks that an environment is fit for training; every finding has its fix.

    `env` is what a trainer takes: a class, a factory, an instance (copies of it are checked) or
    a name. `dataset` has the tasks of its episodes (`self.task`), if it needs any; `tools` and
    `parser` are those of the agent besides the environment's own. `slow_after` is the mean time in
    seconds, without the slowest call, above which steps count as slow, `timeout` the time after
    which a call counts as hanging. With `raise_on_error`, errors are raised as one
    `EnvironmentFault`.

    >>> from turnwise.env import BaseEnvironment
    >>> class Door(BaseEnvironment):
    ...     def reset(self):
    ...         return "There is a door."
    ...     def step(self, action):
    ...         return "It opens.", float("open" in action), True, {}
    ...     def get_state_description(self):
    ...         return "A door."
    >>> check_env(Door).ok
    True
    """
    if num_episodes < 1 or timeout <= 0:
        raise ConfigError(
            f"check_env got num_episodes={num_episodes} and timeout={timeout}, "
            "expected at least 1 episode and a timeout above 0"
        )
    report = CheckReport(_name_of(env), interface.check_source(env))
    factory = _load(env, config, report) if report.ok else None
    if factory is not None:
        harness = Harness(
            factory,
            seed=seed,
            num_episodes=num_episodes,
            slow_after=slow_after,
            timeout=timeout,
            spawns_instance=isinstance(env, BaseEnvironment),
            tasks=dataset,
            tool_steps=ToolSteps(_registry(tools), parser),
        )
        _run_checks(harness, report)
    if raise_on_error and not report.ok:
        raise EnvironmentFault(str(report))
    return report


def _registry(
    tools: ToolRegistry | Iterable[Tool | Callable[..., Any]] | None,
) -> ToolRegistry | None:
    return tools if tools is None or isinstance(tools, ToolRegistry) else ToolRegistry(tools)


def _load(
    env: EnvironmentSource,
    config: EnvironmentConfig | Mapping[str, Any] | None,
    report: CheckReport,
) -> EnvironmentFactory | None:
    try:
        return environment_factory(env, config, is_checked=False)  # the checks do that
    except TurnwiseError:
        raise
    except Exception as error:  # raised by the import of the user's file
        message = f"loading {report.environment} raised {explain(error)}"
        report.findings.append(Finding.error("import", message, "Fix that line."))
        return None


def _run_checks(harness: Harness, report: CheckReport) -> None:
    is_playable = True
    for check in CHECKS:
        is_repetition = any(finding.check in check.unless for finding in report)
        if is_repetition or not is_playable or harness.is_hung:
            report.skipped.append(check.name)
            continue
        known = {finding.check for finding in report}
        found = _run_watched(check, harness)
        # Many checks may find the same failure; it is reported once.
        report.findings += [finding for finding in found if finding.check not in known]
        if not found:
            report.passed.append(check.name)
        is_playable = is_playable and (report.ok or not check.is_needed)
    if not harness.is_hung and "close" not in {finding.check for finding in report}:
        report.passed.append("close")
    harness.shut()


def _run_watched(check: Check, harness: Harness) -> list[Finding]:
    """Runs a check in a thread of its own, which is abandoned when a call does not return."""

    def work() -> list[Finding]:
        found: list[Finding] = []
        for step in (check.function, Harness.close_all):
            try:
                found.extend(step(harness))
            except BrokenCallError as broken:
                found.append(broken.finding)
        return found

    running = in_daemon_thread(work, f"check {check.name}")
    while not running.done():
        call = harness.waiting_for
        wait([running], harness.timeout if call is None else max(0.0, call[1] - time.monotonic()))
        if call is not None and call is harness.waiting_for and call[1] <= time.monotonic():
            harness.is_hung = True
            return [timed_out(call[0], harness.timeout)]
    return running.result()


def _name_of(env: object) -> str:
    if isinstance(env, str):
        return env
    name: str = getattr(env, "__qualname__", type(env).__qualname__)
    return name
