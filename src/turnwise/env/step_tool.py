"""`EnvironmentStepTool`: takes a step in the environment by a tool call."""

import functools
from typing import Any

from turnwise.deadlines import call_with_deadline, is_async
from turnwise.env.base import BaseEnvironment
from turnwise.env.driver import finish_without_loop, step_environment
from turnwise.errors import EnvironmentFault, ToolError, describe_error
from turnwise.tools.base import DEFAULT_TIMEOUT, Tool
from turnwise.tools.types import ToolContext
from turnwise.types import StepResult


class EnvironmentStepTool(Tool):
    """Takes a step in the environment and returns the observation.

    The environment is the episode's, or the one given here. The `ToolResult` of a call has the
    reward and whether the episode is over, and so does the context, in `steps`.

    If the environment fails, the result's `failure` is `ENVIRONMENT`, and the episode ends with
    that status.
    """

    timeout = None  # `step_timeout` instead, whose error names the environment

    def __init__(
        self,
        environment: BaseEnvironment | None = None,
        *,
        name: str = "environment_step",
        description: str = "Act in the environment; the answer is what you see then.",
        step_timeout: float | None = DEFAULT_TIMEOUT,
    ) -> None:
        self._environment = environment
        self._step_timeout = step_timeout
        self.name = name
        self.description = description

    async def execute(self, action: str, context: ToolContext) -> StepResult:
        """Act.

        Args:
            action: What to do, in the environment's own words.
        """
        environment = self._environment or context.environment
        if environment is None:
            fix = "Write EnvironmentStepTool(environment) or registry.open_context(environment)."
            raise EnvironmentFault(f"{self.name} has no environment to act in. {fix}")
        if any(step.done for step in context.steps[-1:]):
            raise ToolError("The episode is over; no action is possible any more.")
        who = f"{type(environment).__name__}.step()"

        step: Any = functools.partial(step_environment, environment, action)
        if not is_async(environment.step):
            step = functools.partial(finish_without_loop, step(), who)
        try:
            result: StepResult = await call_with_deadline(
                step, timeout=self._step_timeout, waiting_for=who, limit_name="step_timeout"
            )
        except EnvironmentFault:
            raise
        except Exception as error:
            raise EnvironmentFault(f"{who} failed: {describe_error(error)}") from error
        return result
