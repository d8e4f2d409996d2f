"""Times the viewer on a run of 10,000 episodes: first view, filters, searches, memory.

python bench/view.py [--episodes 10000] [--steps 50] [--keep FOLDER]

Writes a run with the trainer's own store, serves it with `turnwise view` in a separate process, and
sends the requests of the page. Bars: the first view under 0.5 s, a filter under 0.3 s, a search
under 1 s, also for a word that nearly all episodes contain. `--episodes 100000 --steps 500` is the
work of earlier records, which has no bars: there an index was made first.
On a loaded machine everything takes longer.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from results import add_record_option, record
from turnwise.chat import Message, TokenStream
from turnwise.episode import EpisodeResult
from turnwise.episode.types import AgentRecord, TurnRecord
from turnwise.inference import FinishReason
from turnwise.reward import Reward
from turnwise.runs.episode_store import EpisodeStore
from turnwise.runs.metrics_log import MetricsLog
from turnwise.tools import ToolCall, ToolResult
from turnwise.types import EpisodeStatus

FIRST_VIEW_BAR = 0.5
FILTER_BAR = 0.3
SEARCH_BAR = 1.0
PROMPT = (
    "You keep a shop. Each turn you are told what a customer wants. Look for the article with "
    "search(kind), then sell it with sell(article, number). Sell the cheapest that is in stock. "
)
WORDS = [
    *("amber", "bread", "candle", "door", "engine", "flour", "garden", "hammer", "island"),
    *("jacket", "kettle", "lantern", "mirror", "needle", "orange", "paper", "quilt", "river"),
    *("saddle", "table", "umbrella", "violin", "window", "yarn", "zebra"),
]
TOKENS = random.Random(1).choices(range(32_000), k=100_000)
LOG_PROBS = [-random.Random(token).random() for token in range(20_000)]
STATUSES = [EpisodeStatus.DONE] * 8 + [
    EpisodeStatus.TRUNCATED_BY_TURNS,
    EpisodeStatus.ENVIRONMENT_ERROR,
]
FILTERS = {
    "filter by status": "status=environment_error",
    "filter by reward and turns": "min_reward=0.5&max_reward=0.9&min_turns=3",
    "filter by tool and step": "tool=search&min_step=10&max_step=40",
    "filter by seed": "seed=77",
    "sort by reward": "sort=-reward",
    "sort by tokens, page 100": "sort=tokens&offset=5000",
    "search: a rare text": "text=number+3133{number}+please",
    "search: a common word": "text={word}",
    "search: what all have": "text=keep+a+shop",
    "search: two letters": "text=q{number}",
    "search: in answers": "text={word}&in=answer",
    "search and filter": "text={word}&status=done&min_reward=0.8&sort=-reward",
    "the same search, page 20": "text=lantern&offset=1000",
}


def pick(rng: random.Random, pool: list[Any], number: int) -> list[Any]:
    """Returns adjacent items: drawing each by itself would take longer than storing them."""
    start = rng.randrange(len(pool) - number)
    return pool[start : start + number]


def sentence(rng: random.Random, num_words: int) -> str:
    return " ".join(rng.choices(WORDS, k=num_words))


def make_episode(rng: random.Random, number: int) -> EpisodeResult:
    """Returns an episode of two to six turns, a tool call in each, about 200 tokens."""
    stream, turns = TokenStream(), []
    messages: list[Message] = [
        {"role": "system", "content": PROMPT},
        {"role": "user", "content": f"A customer asks for {sentence(rng, 6)}."},
    ]
    stream.add_context(pick(rng, TOKENS, 60))
    for place in range(rng.randint(2, 6)):
        num_tokens = rng.randint(8, 24)
        stream.add_turn(pick(rng, TOKENS, num_tokens), pick(rng, LOG_PROBS, num_tokens))
        stream.add_context(pick(rng, TOKENS, 16))
        text = f"I look for {sentence(rng, 8)}, number {rng.randrange(100_000)} please."
        seen = f"In stock: {sentence(rng, 2)}." if rng.random() < 0.9 else sentence(rng, 30)
        messages += [
            {"role": "assistant", "content": text},
            {"role": "tool", "content": seen},
        ]
        name = rng.choice(["search", "sell"])
        turn = TurnRecord(stream.turns[-1], text, FinishReason.STOP, number, observation=seen)
        turn.calls = [ToolCall(name, {"kind": rng.choice(WORDS)}, seen, True)]
        turn.tool_results = [ToolResult(name, True, seen, seconds=0.001)]
        turn.seconds, turn.started = {"engine": rng.random(), "tools": 0.001}, float(place)
        turns.append(turn)
    status = rng.choice(STATUSES)
    reward = None if status.is_error else Reward(round(rng.random(), 3))
    agent = AgentRecord("agent", stream, messages, turns, reward=reward)
    seconds = {"engine": float(len(turns)), "total": len(turns) + 0.5}
    return EpisodeResult(number % 1000, status=status, agents=[agent], seconds=seconds)


def write_run(folder: Path, num_episodes: int, num_steps: int) -> None:
    rng = random.Random(0)
    store = EpisodeStore(folder / "episodes", 1e12)
    metrics = MetricsLog(folder / "metrics.jsonl")
    names = [f"metric/{number}" for number in range(50)]
    for step in range(1, num_steps + 1):
        per_step = num_episodes // num_steps
        results = [make_episode(rng, step * per_step + n) for n in range(per_step)]
        width = max(len(result.stream) for result in results)
        columns = {
            name: np.random.default_rng(step).normal(size=(per_step, width))
            for name in ("log_probs", "values", "advantages", "returns")
        }
        store.write(step, results, columns, began=0.0)
        metrics.append(
            {"step": step, "reward": rng.random(), "success": rng.random()}
            | {name: rng.random() for name in names}
        )
    status = {"status": "finished", "step": num_steps, "num_steps": num_steps}
    (folder / "run.json").write_text(json.dumps({**status, "environment": "shop"}))


@contextlib.contextmanager
def viewer(runs: Path) -> Iterator[tuple[str, int]]:
    """Starts a viewer; yields its address and process id."""
    command = [sys.executable, "-m", "turnwise", "view", str(runs), "--no-open"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        address = re.search(r"http://\S+/", server.stdout.readline())
        assert address is not None
        yield address[0], server.pid
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(timeout=20)


def fetch(address: str, path: str) -> bytes:
    with urllib.request.urlopen(f"{address}{path}", timeout=60) as answer:
        data: bytes = answer.read()
    return data


def asked(filters: str, number: int) -> str:
    """Returns a different query each time, since results of searches are cached."""
    return filters.format(word=WORDS[number], number=number)


def ask(address: str, path: str) -> Any:
    return json.loads(fetch(address, path))


def seconds_of(address: str, *paths: str) -> float:
    started = time.perf_counter()
    for path in paths:
        fetch(address, path)
    return time.perf_counter() - started


def first_view(address: str) -> float:
    """Returns the seconds until the page, the metrics and the newest fifty episodes arrived."""
    run, started = "api/runs/big", time.perf_counter()
    seconds_of(address, "", "api/runs", f"{run}/metrics")
    while len(ask(address, f"{run}/episodes?limit=50")["episodes"]) < 50:
        time.sleep(0.01)
    return time.perf_counter() - started


def memory_mib(process: int) -> tuple[float, float]:
    """Returns the resident memory now, and its peak."""
    status = Path(f"/proc/{process}/status").read_text()
    now, most = (int(re.findall(rf"{name}:\s+(\d+)", status)[0]) for name in ("VmRSS", "VmHWM"))
    return now / 1024, most / 1024


def wait_for_all(address: str) -> float:
    started = time.perf_counter()
    while True:
        (run,) = ask(address, "api/runs")["runs"]
        if run["indexed"]["files"] == run["indexed"]["of"]:
            return time.perf_counter() - started
        time.sleep(0.05)


def measure(runs: Path, is_recorded: bool, num_episodes: int) -> bool:
    source = sum(path.stat().st_size for path in runs.rglob("*") if path.is_file())
    print(f"the run's files                  {source / 2**20:8.0f} MiB")
    is_fine, seconds = True, {}
    with viewer(runs) as (address, process):
        took = first_view(address)
        is_fine &= took < FIRST_VIEW_BAR
        print(f"first view                       {took:8.3f} s    bar {FIRST_VIEW_BAR} s")
        print(f"until all episodes were read     {wait_for_all(address):8.3f} s")
        for name, filters in FILTERS.items():
            paths = [f"api/runs/big/episodes?limit=50&{asked(filters, n)}" for n in range(9)]
            times = [seconds_of(address, path) for path in paths]
            total = ask(address, paths[-1])["total"]
            bar = SEARCH_BAR if name.startswith("search") else FILTER_BAR
            is_fine &= median(times) < bar
            seconds[name] = median(times)
            note = f"bar {bar} s, worst {max(times):.3f}, {total} found"
            print(f"{name:<32} {median(times):8.3f} s    {note}")
        best = ask(address, "api/runs/big/episodes?sort=-reward&limit=15")["episodes"]
        times = [seconds_of(address, f"api/runs/big/episodes/{e['id']}") for e in best]
        print(f"an episode                       {median(times):8.3f} s    worst {max(times):.3f}")
        print(
            "memory of the viewer              {:7.0f} MiB, most {:.0f}".format(
                *memory_mib(process)
            )
        )
        most = memory_mib(process)[1]
    if is_recorded:
        quick = [s for name, s in seconds.items() if name.startswith(("filter", "sort"))]
        record(
            f"view/{num_episodes:,} episodes",
            {
                "first view s": took,
                "filter s": [min(quick), max(quick)],
                "rare text s": seconds["search: a rare text"],
                "common word s": seconds["search: a common word"],
                "memory MiB": most,
            },
        )
    return is_fine


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--episodes", type=int, default=10_000)
    options.add_argument("--steps", type=int, default=50)
    options.add_argument("--keep", type=Path, help="a folder for the run, created if needed")
    add_record_option(options)
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        runs = asked.keep or Path(scratch) / "runs"
        if not (runs / "big" / "run.json").exists():
            started = time.perf_counter()
            write_run(runs / "big", asked.episodes, asked.steps)
            print(f"writing the run                  {time.perf_counter() - started:8.1f} s")
        is_fine = measure(runs, asked.record, asked.episodes)
    print("all under their bars" if is_fine else "NOT under their bars")
    sys.exit(0 if is_fine else 1)


if __name__ == "__main__":
    main()
