"""Times the framework itself per turn: a script in place of the model, an empty environment.

python bench/overhead.py [--turns 16] [--model tiny] [--sides turnwise skyrl verifiers]

Everything else is real: conversation, chat template, tokenizer, token stream, limits, records and
rewards. The time of the script is measured and subtracted. All times are CPU time, which other
processes on the machine affect less. SkyRL and verifiers play the same turns in Python environments
of their own (bench/peers), which are created first if needed.

TRL 1.16 is not compared. One of its loops (`GRPOTrainer._tool_call_loop`) needs a trainer with a
model and runs all episodes in lockstep; the other (`AsyncRolloutWorker`) needs vLLM.
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

from results import add_record_option, record
from turnwise import BaseEnvironment, EpisodeCollector, EpisodeLimits
from turnwise.inference import GenerationRequest, GenerationResult, ScriptedEngine
from turnwise.models import load_tokenizer

ROOT = Path(__file__).resolve().parent.parent
BAR_US = 100.0
OBSERVATION = "The door is closed. Exits: north, east. You carry a lamp and a key."
ANSWER = "go north"
PEERS = ["skyrl", "verifiers"]


class NullEnvironment(BaseEnvironment):
    """Returns the same observation every time."""

    max_steps = 2**31
    quick = True

    def reset(self) -> str:
        return OBSERVATION

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        return OBSERVATION, 0.0, False, {}

    def get_state_description(self) -> str:
        return "the same"


class TimedScript(ScriptedEngine):
    """A scripted engine that times itself, and yields to other episodes as a model would."""

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
        collector.collect_sync(1)  # fills the caches
        engine.seconds, start = 0.0, process_time()
        collection = collector.collect_sync(num_episodes)
        took = process_time() - start
        assert collection.summary.num_turns == num_episodes * num_turns
        return took, engine.seconds

    return measure


def run_peer(name: str, order: Order) -> Report | None:
    """Times another framework; prints why and returns None if it does not run here."""
    made = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "environment.py"), name],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if made.returncode:
        print(f"{name}: its environment could not be created", file=sys.stderr)
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
    options = argparse.ArgumentParser(description="Time the framework without a model.")
    options.add_argument("--turns", type=int, default=16, help="turns per episode")
    options.add_argument(
        "--model", default="tiny", help="the model whose tokenizer and template are used"
    )
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument(
        "--sides", nargs="+", choices=["turnwise", *PEERS], default=["turnwise", *PEERS]
    )
    add_record_option(options)
    args = options.parse_args()
    figures: dict[str, dict[str, float]] = {}
    tokenizer = load_tokenizer(args.model)
    print(f"one core, {args.turns} turns per episode, tokenizer of {args.model}")
    print(f"bar: under {BAR_US:.0f} µs per turn with 1,024 concurrent episodes")
    print("| framework | concurrent episodes | µs per turn | best | script, µs per turn | |")
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
                for number, times in report.times.items():
                    typical = median(framework for framework, _ in times) * 1e6
                    figures.setdefault(number, {})[f"{report.name.split()[0]} µs"] = typical
    if args.record:
        alone = "" if len(args.sides) > 1 else " alone"
        for number, values in figures.items():
            record(f"overhead{alone}/{int(number):,} episodes", values)


if __name__ == "__main__":
    main()
