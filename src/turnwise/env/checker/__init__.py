"""`check_env`: plays an environment as training does, and reports what to fix."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import wait
from typing import Any

from turnwise.config import EnvironmentConfig
from turnwise.deadlines import in_daemon_thread
from turnwise.env.base import BaseEnvironment
from turnwise.env.catalog import EnvironmentSource, environment_factory
from turnwise.env.checker.checks import CHECKS, Check
from turnwise.env.checker.harness import BrokenCallError, CheckReport, Finding, Harness, explain
from turnwise.errors import ConfigError, EnvironmentFault, TurnwiseError
from turnwise.tools import ActionParser, Tool, ToolRegistry

__all__ = ["CheckReport", "Finding", "check_env"]


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
    name = env if isinstance(env, str) else getattr(env, "__qualname__", type(env).__qualname__)
    report = CheckReport(name)
    kind = env if isinstance(env, type) else type(env)
    is_function = callable(env) and not isinstance(env, type)
    if not (issubclass(kind, BaseEnvironment) or isinstance(env, str) or is_function):
        fix = f"Write `class {kind.__name__}(BaseEnvironment):` and pass that class."
        if {base.__module__.partition(".")[0] for base in kind.__mro__} & {"gym", "gymnasium"}:
            fix = "Register it with Gymnasium and pass its name: check_env('gym:MyEnv-v0')."
        message = f"got {kind.__qualname__}, expected a class derived from turnwise.BaseEnvironment"
        report.findings.append(Finding("error", "base-class", message, fix))
    try:
        # The checks find what is wrong with the class.
        factory = environment_factory(env, config, is_checked=False) if report.ok else None
    except TurnwiseError:
        raise
    except Exception as error:  # raised by the import of the user's file
        message = f"loading {name} raised {explain(error)}"
        report.findings.append(Finding("error", "import", message, "Fix that line."))
        factory = None
    if factory is not None:
        harness = Harness(
            factory,
            seed=seed,
            num_episodes=num_episodes,
            slow_after=slow_after,
            timeout=timeout,
            spawns_instance=isinstance(env, BaseEnvironment),
            tasks=dataset,
            tools=tools if isinstance(tools, ToolRegistry | None) else ToolRegistry(tools),
            parser=parser,
        )
        _run_checks(harness, report)
    if raise_on_error and not report.ok:
        raise EnvironmentFault(str(report))
    return report


def _run_checks(harness: Harness, report: CheckReport) -> None:
    is_playable = True
    for check in CHECKS:
        known = {finding.check for finding in report}
        if known & check.unless or not is_playable or harness.is_hung:
            report.skipped.append(check.name)
            continue
        findings = _run_watched(check, harness)
        # Many checks may find the same failure; it is reported once.
        report.findings += [finding for finding in findings if finding.check not in known]
        if not findings:
            report.passed.append(check.name)
        is_playable = report.ok or not check.is_needed
    if not harness.is_hung and "close" not in {finding.check for finding in report}:
        report.passed.append("close")
    harness.shut()


def _run_watched(check: Check, harness: Harness) -> list[Finding]:
    """Runs a check in a thread of its own, which is abandoned when a call does not return."""

    def work() -> list[Finding]:
        findings: list[Finding] = []
        for step in (check.function, Harness.close_all):
            try:
                findings.extend(step(harness))
            except BrokenCallError as broken:
                findings.append(broken.finding)
        return findings

    running = in_daemon_thread(work, f"check {check.name}")
    while not running.done():
        call = harness.waiting_for
        wait([running], harness.timeout if call is None else max(0.0, call[1] - time.monotonic()))
        if call is not None and call is harness.waiting_for and call[1] <= time.monotonic():
            harness.is_hung = True
            message = f"{call[0]} did not come back within {harness.timeout:g} s"
            fix = (
                "Look there for a loop without end, a regular expression that backtracks, a lock "
                "or a wait on the network; if it is only slow, call check_env(..., timeout=60)."
            )
            return [Finding("error", "timeout", message, fix)]
    return running.result()
