"""The framework's own time per turn: a script for a model, an environment that does nothing.

python bench/overhead.py [--turns 16] [--model tiny]

Everything else is real: the conversation, the template, the tokenizer, the token stream, the
limits, the records, the rewards. What the script itself takes is measured and shown apart. All
is the processor's time: there is nothing to wait for, and a busy machine counts less.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from statistics import median
from time import process_time
from typing import Any

# Tokenizers reads it when it first encodes: one core is one core.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from turnwise import (
    BaseEnvironment,
    EpisodeCollector,
    EpisodeLimits,
    GenerationRequest,
    GenerationResult,
    ScriptedEngine,
)
from turnwise.models import load_tokenizer

BAR_US = 100.0
OBSERVATION = "The door is closed. Exits: north, east. You carry a lamp and a key."


class NullEnvironment(BaseEnvironment):
    """Says the same each time, at no cost."""

    max_steps = 2**31
    quick = True

    def reset(self) -> str:
        return OBSERVATION

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        return OBSERVATION, 0.0, False, {}

    def get_state_description(self) -> str:
        return "the same"


class TimedScript(ScriptedEngine):
    """A script that measures itself, and lets the others go first as a model would."""

    seconds = 0.0

    async def sample(self, request: GenerationRequest) -> GenerationResult:
        await asyncio.sleep(0)
        start = process_time()
        result = await super().sample(request)
        self.seconds += process_time() - start
        return result


def measure(tokenizer: Any, num_episodes: int, num_turns: int) -> tuple[float, float]:
    """Seconds per turn: the framework's, and the script's."""
    engine = TimedScript(tokenizer, lambda text: "go north")
    collector = EpisodeCollector(
        engine,
        NullEnvironment,
        limits=EpisodeLimits(max_turns=num_turns),
        max_concurrency=num_episodes,
    )
    collector.collect_sync(1)  # what is found out once
    engine.seconds = 0.0
    start = process_time()
    collection = collector.collect_sync(num_episodes)
    took = process_time() - start
    assert collection.summary.num_turns == num_episodes * num_turns
    turns = num_episodes * num_turns
    return (took - engine.seconds) / turns, engine.seconds / turns


def main() -> None:
    options = argparse.ArgumentParser(description="time the framework without a model")
    options.add_argument("--turns", type=int, default=16, help="turns of an episode")
    options.add_argument("--model", default="tiny", help="whose tokenizer and template")
    options.add_argument("--repeats", type=int, default=5)
    args = options.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    tokenizer = load_tokenizer(args.model)
    print(f"one core, {args.turns} turns an episode, tokenizer of {args.model}")
    print(f"bar: under {BAR_US:.0f} µs a turn with 1,024 episodes at once")
    print("| episodes at once | framework, µs a turn | best | the script itself, µs a turn |")
    print("|---|---|---|---|")
    for num_episodes in (1, 64, 1024):
        num_repeats = args.repeats * (20 if num_episodes == 1 else 1)
        times = [measure(tokenizer, num_episodes, args.turns) for _ in range(num_repeats)]
        ours, script = [median(column) * 1e6 for column in zip(*times, strict=True)]
        best = min(ours for ours, _ in times) * 1e6
        print(f"| {num_episodes:,} | {ours:.0f} | {best:.0f} | {script:.0f} |", flush=True)


if __name__ == "__main__":
    main()
