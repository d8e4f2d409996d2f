"""The framework's own time per turn: a script for a model, an environment that does nothing.

python bench/overhead.py [--turns 16] [--model tiny] [--sides turnwise skyrl verifiers]

Everything else is real: the conversation, the template, the tokenizer, the token stream, the
limits, the records, the rewards. What the script itself takes is measured and left out. All is the
processor's time: there is nothing to wait for, and a busy machine counts less. The others play the
same in environments of their own (bench/peers), which are made first if need be.

TRL 1.16 is not among them. One of its loops (`GRPOTrainer._tool_call_loop`) is part of a trainer
with a model, and no episode goes ahead of another in it; the other (`AsyncRolloutWorker`) does not
start without vLLM.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

# Tokenizers reads it when it first encodes: one core is one core.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))

from overhead_work import Measure, Order, Report, time_turns

from turnwise import BaseEnvironment, EpisodeCollector, EpisodeLimits
from turnwise.inference import GenerationRequest, GenerationResult, ScriptedEngine
from turnwise.models import load_tokenizer

ROOT = Path(__file__).resolve().parent.parent
BAR_US = 100.0
OBSERVATION = "The door is closed. Exits: north, east. You carry a lamp and a key."
ANSWER = "go north"
PEERS = ["skyrl", "verifiers"]


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


def our_measure(tokenizer: Any, num_turns: int) -> Measure:
    def measure(num_episodes: int) -> tuple[float, float]:
        engine = TimedScript(tokenizer, ANSWER)
        collector = EpisodeCollector(
            engine,
            NullEnvironment,
            limits=EpisodeLimits(max_turns=num_turns),
            max_concurrency=num_episodes,
        )
        collector.collect_sync(1)  # what is found out once
        engine.seconds, start = 0.0, process_time()
        collection = collector.collect_sync(num_episodes)
        took = process_time() - start
        assert collection.summary.num_turns == num_episodes * num_turns
        return took, engine.seconds

    return measure


def run_peer(name: str, order: Order) -> Report | None:
    """None, with a word why, if it does not run here."""
    made = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "environment.py"), name],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if made.returncode:
        print(f"{name}: its environment could not be made", file=sys.stderr)
        return None
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [made.stdout.strip(), str(ROOT / "bench" / "peers" / f"overhead_{name}.py")],
        input=order.write(),
        capture_output=True,
        text=True,
        env={**os.environ, **quiet, "PYTHONPATH": ""},
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        print(f"{name} does not run here: {last}", file=sys.stderr)
        return None
    return Report(**json.loads(done.stdout.strip().splitlines()[-1]))


def show(report: Report) -> None:
    for num_episodes, times in report.times.items():
        ours, script = [median(column) * 1e6 for column in zip(*times, strict=True)]
        best = min(framework for framework, _ in times) * 1e6
        row = [report.name, f"{int(num_episodes):,}", f"{ours:.0f}", f"{best:.0f}", f"{script:.0f}"]
        print(f"| {' | '.join([*row, report.note])} |", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description="time the framework without a model")
    options.add_argument("--turns", type=int, default=16, help="turns of an episode")
    options.add_argument("--model", default="tiny", help="whose tokenizer and template")
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument(
        "--sides", nargs="+", choices=["turnwise", *PEERS], default=["turnwise", *PEERS]
    )
    args = options.parse_args()
    tokenizer = load_tokenizer(args.model)
    print(f"one core, {args.turns} turns an episode, tokenizer of {args.model}")
    print(f"bar: under {BAR_US:.0f} µs a turn with 1,024 episodes at once")
    print("| framework | episodes at once | its µs a turn | best | the script's µs a turn | |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        order = Order(OBSERVATION, ANSWER, args.turns, repeats=args.repeats, tokenizer=folder)
        for side in args.sides:
            if side != "turnwise":
                report = run_peer(side, order)
            else:
                measure = our_measure(tokenizer, args.turns)
                report = time_turns(Report("turnwise"), order, measure)
            if report is not None:
                show(report)


if __name__ == "__main__":
    main()
