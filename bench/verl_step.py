"""Times the start and the training step of VERL's own trainer and of turnwise, in one run.

    python bench/verl_step.py             run it where VERL is installed: make bench-verl-step
    python bench/verl_step.py --quick     two steps, to see that everything runs; nothing is judged

The same script with two trainers on this CPU: the tiny model in float32, GRPO with a reference
model, 16 episodes of three turns a step, as many threads as cores in each process (VERL has several
processes; with one thread each it was slower). The environment measures: a start lasts from the
launch of the process to the first episode of the first step, a step from its first episode to that
of the next one. So everything in between counts, and neither side times itself.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

from results import add_record_option, record

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from beside_verl.script_runs import (  # type: ignore[import-not-found]
    ON_CPU,
    process_environment,
)
from turnwise import BaseEnvironment, ConfigStore, create_trainer

NUM_STARTS, GROUP_SIZE, NUM_TURNS, NEW_TOKENS = 4, 4, 3, 16
NUM_EPISODES = NUM_STARTS * GROUP_SIZE
LEAST_SPEED_UP = 5.0
LONGEST_START = 10.0
NAMES = {"local": "turnwise, one process", "verl": "VERL", "verl-v1": "VERL, its V1 trainer"}


class ThreeTurns(BaseEnvironment):
    """Takes three actions of any kind; writes the time of every reset to a file."""

    def reset(self, seed: int | None = None) -> str:
        self.num_actions = 0
        with open(self.config["clock"], "a") as file:
            file.write(f"{time.time()}\n")
        return f"Say a word with many vowels, number {seed}."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        self.num_actions += 1
        reward = sum(action.count(vowel) for vowel in "aeiou") / 10
        return "Another one.", reward, self.num_actions == NUM_TURNS, {}

    def get_state_description(self) -> str:
        return f"{self.num_actions} of {NUM_TURNS}"


@dataclass
class Times:
    """Seconds of one side."""

    name: str
    start: float
    steps: list[float]


def settings(folder: Path, num_steps: int) -> ConfigStore:
    config = ConfigStore()
    config.model.dtype = "float32"
    config.inference.max_turns, config.inference.max_tokens = NUM_TURNS, NEW_TOKENS
    training = config.training
    training.adv_estimator, training.kl_loss_coef = "grpo", 0.01
    training.batch_size, training.group_size = NUM_STARTS, GROUP_SIZE
    training.num_epochs, training.steps_per_epoch = 1, num_steps
    config.environment.params = {"clock": str(folder / "clock.txt")}
    config.checkpoint.output_dir = str(folder)
    return config


def train(side: str, folder: Path, num_steps: int) -> None:
    """Trains in a process of its own, as a user's script does."""
    engine, _, is_v1 = side.partition("-")
    options: dict[str, Any] = {}
    if engine == "verl":  # VERL has no CPU platform: it gets that of the tests
        options["verl_overrides"] = [*ON_CPU, f"trainer.use_v1={str(bool(is_v1)).lower()}"]
    trainer = create_trainer(settings(folder, num_steps), ThreeTurns, engine=engine, **options)
    trainer.fit()
    trainer.cleanup()


def measure(side: str, num_steps: int, num_warm_up: int) -> Times:
    """Runs one trainer, and reads the times that its environments wrote."""
    played = num_warm_up + num_steps + 1  # a step ends where the next one begins
    with tempfile.TemporaryDirectory() as name:
        launched = time.time()
        done = subprocess.run(
            [sys.executable, __file__, "--train", side, "--folder", name, "--steps", str(played)],
            env={
                **process_environment(Path(name)),
                "OMP_NUM_THREADS": str(os.cpu_count()),  # otherwise Ray sets it to 1
                "TOKENIZERS_PARALLELISM": "false",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{NAMES[side]} did not run:\n{done.stdout[-4000:]}")
        times = sorted(float(line) for line in (Path(name) / "clock.txt").read_text().split())
    if len(times) != played * NUM_EPISODES:
        raise SystemExit(f"{NAMES[side]} played {len(times)} episodes in {played} steps")
    begun = times[::NUM_EPISODES]
    seconds = [after - before for before, after in itertools.pairwise(begun)]
    return Times(NAMES[side], begun[0] - launched, seconds[num_warm_up:])


def show(sides: list[Times]) -> None:
    print(f"  {'':<24}{'start s':>10}{'step s':>10}{'quickest':>10}{'slowest':>10}")
    for side in sides:
        cells = [side.start, median(side.steps), min(side.steps), max(side.steps)]
        print(f"  {side.name:<24}" + "".join(f"{cell:>10.2f}" for cell in cells))


def judge(ours: Times, other: Times) -> bool:
    ratio = median(other.steps) / median(ours.steps)
    bars = {
        f"a step {ratio:.1f} times as fast as {other.name}'s (bar {LEAST_SPEED_UP:.0f})": (
            ratio >= LEAST_SPEED_UP
        ),
        f"started in {ours.start:.1f} s (bar {LONGEST_START:.0f})": ours.start < LONGEST_START,
    }
    for words, is_met in bars.items():
        print(f"  {words}: {'pass' if is_met else 'FAIL'}")
    return all(bars.values())


def main() -> int:
    parser = argparse.ArgumentParser(description="Time the start and a step of VERL and turnwise.")
    parser.add_argument("--steps", type=int, default=8, help="measured steps")
    parser.add_argument("--warm-up", type=int, default=2, help="steps before the measured ones")
    parser.add_argument("--sides", nargs="+", choices=NAMES, default=["local", "verl"])
    parser.add_argument("--quick", action="store_true", help="two steps; bars are not judged")
    add_record_option(parser)
    parser.add_argument("--train", choices=NAMES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(options.train, options.folder, options.steps)
        return 0
    num_steps, num_warm_up = (2, 0) if options.quick else (options.steps, options.warm_up)
    print(
        f"{date.today()}, {os.cpu_count()} CPUs: GRPO with a reference, the tiny model, "
        f"{NUM_EPISODES} episodes of {NUM_TURNS} turns, {num_steps} steps after {num_warm_up}"
    )
    sides = {side: measure(side, num_steps, num_warm_up) for side in options.sides}
    show(list(sides.values()))
    if options.record and not options.quick and {"local", "verl"} <= sides.keys():
        ours, verls = sides["local"], sides["verl"]
        record(
            "verl_step/GRPO",
            {
                "VERL start s": verls.start,
                "VERL step s": median(verls.steps),
                "turnwise start s": ours.start,
                "turnwise step s": median(ours.steps),
                "speed-up": median(verls.steps) / median(ours.steps),
            },
        )
    if options.quick or "local" not in sides:
        return 0
    met = [judge(sides["local"], other) for side, other in sides.items() if side != "local"]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
