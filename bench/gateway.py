"""What the gateway adds to a call of the model: HTTP, an API's format, matching of messages.

    python bench/gateway.py [--episodes 1 64 256] [--turns 8] [--rounds 5] [--record]

The engine is a script that replies at once. Each episode is a conversation of several turns that
grows by a message of the user; the same conversations are held through the gateway and by calls of
the same sessions in one process. The client is a process of its own that keeps its connections
open. `added` is the difference in time per call; `processor` is the time of the trainer's process
for a call, without the client's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from results import add_record_option, describe_machine, record
from turnwise.agents.gateway import LLM, Gateway
from turnwise.agents.requests import ChatRequest
from turnwise.agents.session import AgentSession
from turnwise.episode import CollectorOptions, EpisodeLimits
from turnwise.episode.setup import EpisodeSetup, make_setup
from turnwise.inference.scripted import ScriptedEngine
from turnwise.models import load_tokenizer

QUESTION = "The soil is dry and it is day 4. What do you do now?"
ANSWER = "I water the plants, and look again tomorrow."


def make_setup_of(num_turns: int) -> EpisodeSetup:
    engine = ScriptedEngine(load_tokenizer("tiny"), ANSWER)
    limits = EpisodeLimits(max_turns=num_turns)
    return make_setup(engine, CollectorOptions(limits=limits))


async def converse(call: Any, num_turns: int) -> None:
    """One conversation; `call` gets the messages and returns the reply."""
    messages: list[dict[str, Any]] = []
    for _ in range(num_turns):
        messages.append({"role": "user", "content": QUESTION})
        messages.append(await call(messages))


def called_directly(setup: EpisodeSetup, num_episodes: int, num_turns: int) -> float:
    """Seconds of all conversations, by calls of the sessions."""

    async def run() -> None:
        sessions = [AgentSession(setup, seeds=(n,)) for n in range(num_episodes)]

        def call(session: AgentSession) -> Any:
            async def ask(messages: list[dict[str, Any]]) -> Any:
                (reply,) = await session.complete(ChatRequest(list(messages)))
                return reply.message

            return ask

        await asyncio.gather(*(converse(call(session), num_turns) for session in sessions))

    start = time.perf_counter()
    asyncio.run(run())
    return time.perf_counter() - start


def called_through_gateway(
    setup: EpisodeSetup, num_episodes: int, num_turns: int
) -> tuple[float, float]:
    """Seconds of all conversations over HTTP, and seconds of this process's processor."""
    with Gateway() as gateway:
        llms = [gateway.open(AgentSession(setup, seeds=(n,))) for n in range(num_episodes)]
        given = json.dumps({"turns": num_turns, "llms": [vars(llm) for llm in llms]})
        before = time.process_time()
        client = subprocess.run(
            [sys.executable, __file__, "--client"],
            input=given,
            capture_output=True,
            text=True,
            check=True,
        )
        used = time.process_time() - before
        asyncio.run(_close(gateway, llms))
    return float(client.stdout), used


async def _close(gateway: Gateway, llms: list[LLM]) -> None:
    for llm in llms:
        await gateway.close(llm)


async def client() -> None:
    """The other process: a connection for each episode, and no library that takes time."""
    given = json.load(sys.stdin)

    async def episode(llm: dict[str, str]) -> None:
        address = urlsplit(llm["base_url"])
        reader, writer = await asyncio.open_connection(address.hostname, address.port)

        async def ask(messages: list[dict[str, Any]]) -> Any:
            body = json.dumps({"model": llm["model"], "messages": messages}).encode()
            writer.write(
                f"POST {address.path}/chat/completions HTTP/1.1\r\nhost: {address.netloc}\r\n"
                f"authorization: Bearer {llm['api_key']}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\n\r\n".encode()
                + body
            )
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                int(line.split(b":")[1])
                for line in head.lower().split(b"\r\n")
                if line.startswith(b"content-length")
            )
            return json.loads(await reader.readexactly(length))["choices"][0]["message"]

        await converse(ask, given["turns"])
        writer.close()

    start = time.perf_counter()
    await asyncio.gather(*(episode(llm) for llm in given["llms"]))
    print(time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what the gateway adds to a call.")
    parser.add_argument("--episodes", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--turns", type=int, default=8, help="calls of each episode")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--client", action="store_true", help=argparse.SUPPRESS)
    add_record_option(parser)
    options = parser.parse_args()
    if options.client:
        asyncio.run(client())
        return
    print(describe_machine())
    setup = make_setup_of(options.turns)
    for num_episodes in options.episodes:
        num_calls = num_episodes * options.turns
        direct, over_http, used = [], [], []
        for _ in range(options.rounds):
            direct.append(called_directly(setup, num_episodes, options.turns) / num_calls * 1e3)
            wall, processor = called_through_gateway(setup, num_episodes, options.turns)
            over_http.append(wall / num_calls * 1e3)
            used.append(processor / num_calls * 1e3)
        added = median(a - b for a, b in zip(over_http, direct, strict=True))
        figures = {
            "direct ms": median(direct),
            "gateway ms": median(over_http),
            "added ms": added,
            "processor ms": median(used),
        }
        told = ", ".join(f"{name} {value:.3f}" for name, value in figures.items())
        print(f"{num_episodes} episodes at once: {told}")
        if options.record:
            record(f"gateway/{num_episodes} at once", figures)


if __name__ == "__main__":
    main()
