"""`check_env`: plays an environment as training does, and reports what to fix."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from turnwise.config import EnvironmentConfig
from turnwise.env.base import BaseEnvironment
from turnwise.env.catalog import EnvironmentSource, environment_factory
from turnwise.env.checker.checks import CHECKS
from turnwise.env.checker.harness import CheckReport, Finding, Harness, explain
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
    `EnvironmentFault`. What is no environment at all is an error at once.

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
        got = f"num_episodes={num_episodes} and timeout={timeout}"
        raise ConfigError(f"check_env got {got}, expected at least 1 and a time above 0")
    name = env if isinstance(env, str) else getattr(env, "__qualname__", type(env).__qualname__)
    report = CheckReport(name)
    try:
        factory = environment_factory(env, config)
    except TurnwiseError:
        raise
    except Exception as error:  # raised by the import of the user's file
        message = f"loading {name} raised {explain(error)}"
        report.findings.append(Finding("error", "import", message, "Fix that line."))
        factory = None
    if factory is not None:
        harness = Harness(
            factory,
            seeds=range(seed, seed + num_episodes),
            slow_after=slow_after,
            timeout=timeout,
            spawns_instance=isinstance(env, BaseEnvironment),
            tasks=dataset,
            tools=tools if isinstance(tools, ToolRegistry | None) else ToolRegistry(tools),
            parser=parser,
        )
        for check_name, check in CHECKS.items():
            if not report.ok:
                report.skipped.append(check_name)
            elif findings := harness.run(check):
                report.findings += findings
            else:
                report.passed.append(check_name)
        if report.ok:
            report.passed.append("close")
        harness.thread.end()
    if raise_on_error and not report.ok:
        raise EnvironmentFault(str(report))
    return report
