"""How an agent is called: an async function, a plain function, or a command."""

import asyncio
import contextlib
import functools
import inspect
import json
import os
import shlex
import signal
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from turnwise.agents.gateway import LLM
from turnwise.deadlines import call_with_deadline
from turnwise.errors import ConfigError

AgentSource: TypeAlias = Callable[..., Any] | str
"""`agent(task, llm)`, plain or `async def`; or a command such as `"my-cli --task {task}"`."""

_MOST_OUTPUT = 1_000_000
"""Characters of a command's output that are kept."""


@dataclass(frozen=True)
class CommandResult:
    """What a command left behind; reward functions find it in `trajectory.result`."""

    exit_code: int
    output: str
    """Standard output and standard error, as they came."""
    reward: Any = None
    """What it wrote into the file `$TURNWISE_REWARD_FILE`, as JSON."""


def check_agent(agent: AgentSource) -> AgentSource:
    """Refuse what cannot be called as an agent."""
    if not callable(agent) and not (isinstance(agent, str) and agent.strip()):
        raise ConfigError(
            f"agent got {agent!r:.80}, expected a function of (task, llm), plain or async, or a "
            'command such as "my-cli --task {task}"'
        )
    if callable(agent):
        try:
            inspect.signature(agent).bind({}, None)
        except TypeError as error:
            name = getattr(agent, "__name__", type(agent).__name__)
            raise ConfigError(
                f"agent {name} cannot be called as {name}(task, llm): {error}. Let it take both."
            ) from None
        except ValueError:  # a function of C, which does not say what it takes
            pass
    return agent


async def run_agent(
    agent: AgentSource, task: Mapping[str, Any], llm: LLM, timeout: float | None
) -> Any:
    """Call an agent and return what it returns; DeadlineExceeded when it takes too long."""
    function = agent if callable(agent) else functools.partial(_run_command, agent)
    return await call_with_deadline(
        function,
        task,
        llm,
        timeout=timeout,
        waiting_for="the agent",
        limit_name="limits.max_seconds",
    )


async def _run_command(command: str, task: Mapping[str, Any], llm: LLM) -> CommandResult:
    """Run a command as an agent; its processes end with the call."""
    words = _arguments(command, task)
    with tempfile.TemporaryDirectory(prefix="turnwise-agent-") as folder:
        reward_file, task_file = Path(folder) / "reward.json", Path(folder) / "task.json"
        task_file.write_text(json.dumps(dict(task), default=str), encoding="utf-8")
        variables = {
            **os.environ,
            **llm.environment,
            "TURNWISE_TASK_FILE": str(task_file),
            "TURNWISE_REWARD_FILE": str(reward_file),
        }
        try:
            process = await asyncio.create_subprocess_exec(
                *words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=variables,
                start_new_session=True,
            )
        except OSError as error:
            fix = "Install it, or write its whole path."
            if words[0].endswith(".py"):
                fix = f"Write {words[0]}:name for a function of it, python {words[0]} to run it."
            raise ConfigError(
                f"the agent's command {words[0]!r} could not be started: "
                f"{error.strerror or error}. {fix}"
            ) from error
        output = bytearray()
        try:
            assert process.stdout is not None
            while chunk := await process.stdout.read(65536):
                output += chunk[: _MOST_OUTPUT - len(output)]
            code = await process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        reward = None
        if reward_file.exists():
            text = reward_file.read_text(encoding="utf-8", errors="replace")[:_MOST_OUTPUT]
            try:
                reward = json.loads(text)
            except ValueError:
                raise ConfigError(
                    f"the agent wrote {text[:80]!r} into $TURNWISE_REWARD_FILE, expected a number "
                    'or an object of numbers as JSON, such as 0.5 or {"success": true}'
                ) from None
        return CommandResult(code, output.decode(errors="replace"), reward)


def _arguments(command: str, task: Mapping[str, Any]) -> list[str]:
    """Return the command's words; `{task}` is the task's text, `{name}` a field of it.

    The words are split before the fields are put in: a task cannot add words of its own.
    """
    text = task.get("prompt") or task.get("question") or json.dumps(dict(task), default=str)
    known = {**{str(name): value for name, value in task.items()}, "task": text}
    try:
        return [word.format_map(known) for word in shlex.split(command)]
    except (KeyError, IndexError, ValueError) as error:
        raise ConfigError(
            f"the command {command!r} asks for {error}, which this task does not have; it has "
            f"{', '.join(known)}. Write braces that are no field twice: {{{{ }}}}."
        ) from None
