"""What the gateway adds to a call of the model: HTTP, an API's format, matching of messages.

    python bench/gateway.py [--episodes 1 64 256] [--turns 8] [--rounds 5] [--litellm] [--record]

The engine is a script that replies at once. Each episode is a conversation of several turns that
grows by a message of the user; the same conversations are held through the gateway and by calls of
sessions in one process. The client is a process of its own that keeps its connections open. `added`
is the difference in time per call; `processor` is the time of the trainer's process for a call,
without the client's.

`--litellm` also holds them through LiteLLM's proxy, in an environment of its own, which passes each
call on to the gateway: `LiteLLM added` is what it takes on top of the gateway, and `LiteLLM
processor` the time of its process for a call.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from gateway_client import converse
from results import ROOT, add_record_option, describe_machine, record
from turnwise.agents.gateway import LLM, Gateway
from turnwise.agents.requests import ChatRequest
from turnwise.agents.session import AgentSession
from turnwise.episode import CollectorOptions, EpisodeLimits
from turnwise.episode.options import EpisodeSetup, make_setup
from turnwise.inference.scripted import ScriptedEngine
from turnwise.models import load_tokenizer

ANSWER = "I water the plants, and look again tomorrow."


def make_setup_of(num_turns: int) -> EpisodeSetup:
    engine = ScriptedEngine(load_tokenizer("tiny"), ANSWER)
    limits = EpisodeLimits(max_turns=num_turns)
    return make_setup(engine, CollectorOptions(limits=limits))


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


def called_over_http(llms: Sequence[LLM], name: str, num_turns: int) -> float:
    """Seconds of all conversations over HTTP; `name` makes them differ from earlier ones."""
    given = json.dumps({"turns": num_turns, "llms": [vars(llm) for llm in llms], "name": name})
    client = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "gateway_client.py")],
        input=given,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(client.stdout)


class LiteLLMProxy:
    """LiteLLM's proxy in front of the gateway, with one model for each episode."""

    def __init__(self, llms: Sequence[LLM]) -> None:
        self._key = f"sk-{secrets.token_hex(32)}"
        self._folder = tempfile.TemporaryDirectory()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        url = f"http://127.0.0.1:{self._port}/v1"
        self.llms = [LLM(url, self._key, f"episode-{number}") for number in range(len(llms))]
        models = [
            {
                "model_name": f"episode-{number}",
                "litellm_params": {
                    "model": f"openai/{llm.model}",
                    "api_base": llm.base_url,
                    "api_key": llm.api_key,
                },
            }
            for number, llm in enumerate(llms)
        ]
        self._config = Path(self._folder.name) / "config.yaml"
        self._config.write_text(json.dumps({"model_list": models}), encoding="utf-8")

    def __enter__(self) -> LiteLLMProxy:
        script = [sys.executable, str(ROOT / "scripts" / "environment.py"), "litellm"]
        made = subprocess.run(script, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        place = ["--host", "127.0.0.1", "--port", str(self._port)]
        self._process = subprocess.Popen(
            [str(Path(made).with_name("litellm")), "--config", str(self._config), *place],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={
                **os.environ,
                "LITELLM_MASTER_KEY": self._key,
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # prices are not fetched
                "PYTHONPATH": "",
            },
        )
        self._wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        self._folder.cleanup()

    @property
    def processor_seconds(self) -> float:
        """Time of the proxy's process so far; Linux only."""
        stat = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    def _wait(self) -> None:
        url = f"http://127.0.0.1:{self._port}/health/liveliness"
        for _ in range(600):
            if self._process.poll() is not None:
                raise SystemExit(f"LiteLLM's proxy ended with {self._process.returncode}")
            with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=10):
                return
            time.sleep(0.5)
        raise SystemExit("LiteLLM's proxy did not start within five minutes")


class Measurements:
    """Milliseconds per call, by name; the same episodes take part in all rounds."""

    def __init__(self, gateway: Gateway, options: argparse.Namespace, num_episodes: int) -> None:
        self._turns, self._num_calls = options.turns, num_episodes * options.turns
        # Each round plays two new conversations, and one more comes before them.
        self._setup = make_setup_of((2 * options.rounds + 1) * options.turns)
        sessions = [AgentSession(self._setup, seeds=(n,)) for n in range(num_episodes)]
        self.llms = [gateway.open(session) for session in sessions]
        self.values: dict[str, list[float]] = {}

    def add_round(self, number: int, proxy: LiteLLMProxy | None) -> None:
        """Measure each way in turn."""
        direct = called_directly(self._setup, len(self.llms), self._turns)
        before = time.process_time()
        gateway = called_over_http(self.llms, f"gateway {number}", self._turns)
        used = time.process_time() - before
        self._add(direct=direct, gateway=gateway, added=gateway - direct, processor=used)
        if proxy is not None:
            before = proxy.processor_seconds
            passed = called_over_http(proxy.llms, f"LiteLLM {number}", self._turns)
            used = proxy.processor_seconds - before
            self._add(LiteLLM=passed)
            self._add(**{"LiteLLM added": passed - gateway, "LiteLLM processor": used})

    def warm_up(self, proxy: LiteLLMProxy) -> None:
        """The proxy's first calls open its connections; they are not measured."""
        called_over_http(proxy.llms, "first", self._turns)

    def _add(self, **seconds: float) -> None:
        for name, value in seconds.items():
            self.values.setdefault(f"{name} ms", []).append(value / self._num_calls * 1e3)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what the gateway adds to a call.")
    parser.add_argument("--episodes", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--turns", type=int, default=8, help="calls of each episode")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--litellm", action="store_true", help="compare with LiteLLM's proxy")
    add_record_option(parser)
    options = parser.parse_args()
    print(describe_machine())
    for num_episodes in options.episodes:
        with Gateway() as gateway, contextlib.ExitStack() as stack:
            measured = Measurements(gateway, options, num_episodes)
            proxy = None
            if options.litellm:
                proxy = stack.enter_context(LiteLLMProxy(measured.llms))
                measured.warm_up(proxy)
            for number in range(options.rounds):
                measured.add_round(number, proxy)
        figures = {name: median(values) for name, values in measured.values.items()}
        told = ", ".join(f"{name} {value:.3f}" for name, value in figures.items())
        print(f"{num_episodes} episodes at once: {told}")
        if options.record:
            record(f"gateway/{num_episodes} at once", figures)


if __name__ == "__main__":
    main()
