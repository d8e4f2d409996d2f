"""One agent in five crashes, hangs or talks nonsense: every episode has a status, nothing leaks."""

import asyncio
import contextlib
import gc
import http.client
import os
import socket
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from agents.serving import ask
from contention import wait_until
from turnwise.agents.episode import AgentEpisodes
from turnwise.deadlines import run_sync
from turnwise.episode import EpisodeCollector, EpisodeLimits
from turnwise.inference import GenerationRequest, create_inference_engine
from turnwise.models import load_model
from turnwise.types import EpisodeStatus

SECONDS = 4.0
RELEASED = threading.Event()
"""Lets the threads of hanging agents end after the test."""


def say(llm, text, **more):
    body = {"model": llm.model, "messages": [{"role": "user", "content": text}], "max_tokens": 3}
    return ask(llm, "/chat/completions", {**body, **more})


def crashes(llm):
    say(llm, "a")
    raise KeyError("nothing here")


def hangs(llm):
    say(llm, "a")
    RELEASED.wait(600)


def exits(llm):
    raise SystemExit(3)


def talks_nonsense(llm):
    assert ask(llm, "/chat/completions", b'{"messages": [')[0] == 400
    assert ask(llm, "/chat/completions", {"model": "policy", "messages": []})[0] == 400
    assert ask(llm, "/chat/completions", {}, key="sk-wrong")[0] == 401
    return "nonsense"


def hangs_up(llm):
    """Leave in the middle of a request, and of a reply."""
    address = urlsplit(llm.base_url)
    with socket.create_connection((address.hostname, address.port)) as half:
        half.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n{")
    connection = http.client.HTTPConnection(address.netloc)
    connection.request(
        "POST",
        f"{address.path}/chat/completions",
        b'{"model": "policy", "messages": [{"role": "user", "content": "b"}]}',
        {"authorization": f"Bearer {llm.api_key}"},
    )
    connection.close()
    return 0.0


FAULTS = [crashes, hangs, exits, talks_nonsense, hangs_up]


def plain(task, llm):
    number = task["number"]
    if number % 5 == 4:
        return FAULTS[number // 5](llm)
    return float(say(llm, f"Say {number}")[0] == 200 and say(llm, "again")[0] == 200)


async def on_the_loop(task, llm):
    if task["number"] == 9:
        await asyncio.sleep(3600)
    return await asyncio.to_thread(plain, task, llm)


def sockets_and_gateways():
    gc.collect()
    places = []
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed in between
            places.append(os.readlink(path))
    gateways = {t for t in threading.enumerate() if t.name == "turnwise: gateway"}
    return sum(place.startswith("socket:") for place in places), gateways


@pytest.mark.parametrize("agent", [plain, on_the_loop])
def test_every_episode_has_a_status_and_nothing_leaks(agent):
    loaded = load_model("tiny")
    engine = create_inference_engine(loaded.model, "local", tokenizer=loaded.tokenizer)
    RELEASED.clear()
    before = sockets_and_gateways()
    source = AgentEpisodes(agent)
    collector = EpisodeCollector(
        engine, source, limits=EpisodeLimits(max_seconds=SECONDS), num_retries=0
    )
    tasks = [
        task.__class__(task.seed, number, task={"number": number})
        for number, task in enumerate(collector.tasks(25))
    ]

    async def play():
        results = list(await collector.play(tasks))
        running = asyncio.all_tasks() - {asyncio.current_task()}
        assert not [task for task in running if "turnwise" in str(task.get_coro())]
        # The engine's thread forgets sessions before its next turn; one without a name holds none.
        for _ in range(2):
            await engine.sample(GenerationRequest([5], 1))
        return results

    try:
        results = run_sync(play())
        assert engine._runner.kv_cache.num_allocated == 0
        assert not source._gateway._episodes, "no session is left"
    finally:
        RELEASED.set()
        source.close()
        engine.close()
    for number, result in enumerate(results):
        fault = FAULTS[number // 5] if number % 5 == 4 else None
        # The time of an episode may end while its agent runs, or while the engine samples for it.
        words = ("limits.max_seconds", "no turn (deadline)")
        is_late = any(part in (result.error or "") for part in words)
        if fault in (crashes, hangs, exits):
            assert result.status is EpisodeStatus.AGENT_ERROR or is_late
            assert is_late or fault is not hangs
        elif fault is talks_nonsense:
            assert result.status is EpisodeStatus.REWARD_ERROR or is_late
        else:
            assert result.status is EpisodeStatus.DONE or is_late, result.error
        assert (result.reward is None) == result.status.is_error
    # An agent that was too late may still be in a request of its own.
    assert wait_until(lambda: sockets_and_gateways() == before), (before, sockets_and_gateways())
