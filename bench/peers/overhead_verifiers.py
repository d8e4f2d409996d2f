"""Runs verifiers' multi-turn loop on the work of bench/overhead.py, in the environment `verifiers`.

This is its last version whose loop runs in one process. It leaves tokenization to its server: here
nothing is rendered or encoded, and a script answers its messages.
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
    """Returns the same observation every time."""

    async def env_response(self, messages: Any, state: Any, **options: Any) -> Any:
        return [{"role": "user", "content": ORDER.observation}]


class Script(Client):  # type: ignore[misc]
    """Returns the same text every time, and yields to other episodes as a model would."""

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
        """Accepts every response."""

    def setup_client(self, config: Any) -> None:
        """Does nothing: there is no native client."""

    async def close(self) -> None:
        """There is nothing to release."""


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
