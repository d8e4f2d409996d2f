"""verifiers' multi-turn loop on the work of bench/overhead.py; runs in `verifiers`.

Its last version whose loop runs in one process. It leaves tokens to the server that it speaks to:
here it is given none to render or to encode, and its messages go to a script.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from time import process_time
from typing import Any

import verifiers as vf  # type: ignore[import-not-found]
from datasets import Dataset  # type: ignore[import-not-found]
from overhead_work import Order, Report, time_turns
from verifiers.clients import Client  # type: ignore[import-not-found]
from verifiers.types import (  # type: ignore[import-not-found]
    Response,
    ResponseMessage,
)

ORDER = Order.read()


class NullEnvironment(vf.MultiTurnEnv):  # type: ignore[misc]
    """Says the same each time, at no cost."""

    async def env_response(self, messages: Any, state: Any, **options: Any) -> Any:
        return [{"role": "user", "content": ORDER.observation}]


class Script(Client):  # type: ignore[misc]
    """Always says the same, and lets the others go first as a model would."""

    seconds = 0.0

    async def get_native_response(self, prompt: Any, *args: Any, **options: Any) -> Any:
        await asyncio.sleep(0)
        start = process_time()
        message = ResponseMessage(content=ORDER.answer, finish_reason="stop", is_truncated=False)
        response = Response(id="x", created=0, model="script", message=message)
        self.seconds += process_time() - start
        return response

    async def to_native_prompt(self, messages: Any) -> Any:
        return messages, {}

    async def from_native_response(self, response: Any) -> Any:
        return response

    async def to_native_tool(self, tool: Any) -> Any:
        return tool

    async def raise_from_native_response(self, response: Any) -> None:
        """It is always good."""

    def setup_client(self, config: Any) -> None:
        """There is none."""

    async def close(self) -> None:
        """Nothing is held."""


def main() -> None:
    logging.disable(logging.WARNING)
    prompt = [{"role": "user", "content": ORDER.observation}]
    environment = NullEnvironment(
        max_turns=ORDER.num_turns,
        dataset=Dataset.from_list([{"prompt": prompt, "answer": ""}]),
        rubric=vf.Rubric(),
    )
    script = Script(None)
    given = {"prompt": prompt, "answer": "", "example_id": 0}

    async def play(num_episodes: int) -> list[Any]:
        rollouts = [environment.rollout(given, script, "script") for _ in range(num_episodes)]
        return list(await asyncio.gather(*rollouts))

    def measure(num_episodes: int) -> tuple[float, float]:
        script.seconds, start = 0.0, process_time()
        states = asyncio.run(play(num_episodes))
        took = process_time() - start
        if any(len(state["trajectory"]) != ORDER.num_turns for state in states):
            sys.exit("an episode did not have its turns")
        return took, script.seconds

    note = "makes no tokens: that is left to a server"
    time_turns(Report("verifiers 0.1.14", note), ORDER, measure).print()


if __name__ == "__main__":
    main()
