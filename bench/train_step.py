"""Times a GRPO training step of turnwise, TRL and AgileRL, alternating in one run.

    python bench/train_step.py                     tiny model, one turn and six turns
    python bench/train_step.py --turns twelve      longer conversations
    python bench/train_step.py --model smollm2     real weights, fewer episodes
    python bench/train_step.py --quick             small sizes, to see that everything runs

GRPO in float32 on a CPU: the same weights, prompts, group size and number of tokens. Turns have a
fixed length; no sampled token ends one. A step includes everything from the end of one to the end
of the next: episodes, rewards, the update, records. Each side is a process in its own Python
environment (see bench/peers). Processes alternate, so that a slow phase of the machine affects all
sides. Speed is trained (sampled) tokens per second: medians, with the fastest and slowest step.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))

from measure import CHAT_TEMPLATE, Order, Report, Work

from results import add_record_option, describe_machine, record

ROOT = Path(__file__).resolve().parent.parent
# No network, and no output besides ours.
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
    "TRL_EXPERIMENTAL_SILENCE": "1",
}
# The required speed-up over TRL. Memory must not exceed TRL's.
BARS = {"one turn": 2.0, "six turns": 3.0, "twelve turns": 3.0}
WORKS = {
    "tiny": [
        Work("one turn", 8, 8, 128, 128),
        Work("six turns", 4, 8, 40, 12, 6, 40),
        Work("twelve turns", 4, 8, 40, 12, 12, 40),
    ],
    "smollm2": [
        Work("one turn", 2, 4, 128, 32),
        Work("six turns", 1, 4, 40, 12, 6, 40),
        Work("twelve turns", 1, 4, 40, 12, 12, 40),
    ],
}
QUICK = [
    Work("one turn", 2, 4, 64, 16),
    Work("six turns", 1, 4, 40, 6, 6, 40),
    Work("twelve turns", 1, 4, 40, 6, 12, 40),
]
TURNS = {
    "one": ["one turn"],
    "six": ["six turns"],
    "twelve": ["twelve turns"],
    "both": ["one turn", "six turns"],
}
MODELS = {"tiny": "tiny", "smollm2": "smollm2-135m"}


@dataclass
class Side:
    """One trainer that is compared, and its measurements."""

    key: str
    script: str
    environment: str
    options: dict[str, Any] = field(default_factory=dict)
    suffix: str = ""
    reports: list[Report] = field(default_factory=list)
    num_warm_up: int = 0

    @property
    def name(self) -> str:
        return self.reports[0].name + self.suffix

    def steady(self, what: str) -> list[float]:
        """Returns a measurement of every step after the warm-up."""
        return [x for report in self.reports for x in getattr(report, what)[self.num_warm_up :]]

    @property
    def speeds(self) -> list[float]:
        pairs = zip(self.steady("num_sampled"), self.steady("step"), strict=True)
        return [tokens / seconds for tokens, seconds in pairs]

    @property
    def peak_mib(self) -> float:
        return max(report.peak_mib for report in self.reports)

    @property
    def added_mib(self) -> float:
        """Peak memory on top of what was resident after the imports."""
        return max(report.peak_mib - report.imported_mib for report in self.reports)


def sides_for(chosen: list[str]) -> list[Side]:
    sides = [
        Side("turnwise", "turnwise_grpo.py", "dev"),
        Side("trl", "trl_grpo.py", "trl"),
        Side("trl-16", "trl_grpo.py", "trl", {"micro_batch": 16}, ", 16 at a time"),
        Side(
            "trl-defaults",
            "trl_grpo.py",
            "trl",
            {"checkpointing": True, "micro_batch": 8},
            ", its defaults",
        ),
        Side("agilerl", "agilerl_grpo.py", "agilerl"),
    ]
    return [side for side in sides if side.key in chosen]


def python_of(environment: str) -> str:
    """Returns the Python of an environment, created if needed; `dev` is the running one."""
    if environment == "dev":
        return sys.executable
    script = str(ROOT / "scripts" / "environment.py")
    made = subprocess.run([sys.executable, script, environment], stdout=subprocess.PIPE, check=True)
    return made.stdout.decode().strip()


def run_side(side: Side, order: Order) -> Report | None:
    """Runs one process of a side; prints why and returns None if it does not run here."""
    environment = {
        **os.environ,
        **QUIET,
        "OMP_NUM_THREADS": str(order.num_threads),
        "PYTHONPATH": str(ROOT / "src") if side.environment == "dev" else "",
    }
    done = subprocess.run(
        [python_of(side.environment), str(ROOT / "bench" / "peers" / side.script)],
        input=order.write(),
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        print(f"{side.key} does not run here: {last}", flush=True)
        return None
    return Report(**json.loads(done.stdout.strip().splitlines()[-1]))


def measure(sides: list[Side], work: Work, model: str, options: argparse.Namespace) -> list[Side]:
    """Runs the processes of all sides alternately; returns the sides that ran."""
    num_steps = options.warm_up + options.steps
    running = list(sides)
    for _ in range(options.rounds):
        for side in list(running):
            order = Order(
                work, model, num_steps, options.threads, options.clock, options=side.options
            )
            started = time.monotonic()
            report = run_side(side, order)
            taken = time.monotonic() - started
            print(f"[{work.name}, {side.key}: {taken:.0f} s]", file=sys.stderr, flush=True)
            if report is None:
                running.remove(side)
                continue
            side.num_warm_up = options.warm_up
            side.reports.append(report)
            wrong = [n for n in report.num_sampled if n != work.num_sampled]
            if wrong or len(report.step) != num_steps:
                raise SystemExit(
                    f"{side.name} trained on {report.num_sampled} tokens in {len(report.step)} "
                    f"steps, expected {work.num_sampled} in each of {num_steps}"
                )
    return [side for side in running if side.reports]


def show(sides: list[Side], work: Work) -> None:
    turns = f"{work.num_turns} x {work.new_tokens}" if work.num_turns > 1 else f"{work.new_tokens}"
    between = f", {work.observation_tokens} between turns" if work.num_turns > 1 else ""
    print(
        f"\n{work.name}: {work.num_prompts} prompts x {work.group_size}, "
        f"{work.prompt_tokens} + {turns} sampled tokens{between}; "
        f"{work.num_sampled:,} tokens a step are trained on"
    )
    heads = ["tokens/s", "range", "step s", "play s", "update s", "peak MiB", "imports MiB"]
    print(f"  {'':<26}" + "".join(f"{head:>14}" for head in heads))
    for side in sides:
        speeds, step, play = side.speeds, median(side.steady("step")), side.steady("generate")
        cells = [
            f"{median(speeds):,.0f}",
            f"{min(speeds):,.0f}-{max(speeds):,.0f}",
            f"{step:.3f}",
            f"{median(play):.3f}",
            f"{step - median(play):.3f}",
            f"{side.peak_mib:,.0f}",
            f"{side.peak_mib - side.added_mib:,.0f}",
        ]
        note = f"  {side.reports[0].note}" if side.reports[0].note else ""
        print(f"  {side.name:<26}" + "".join(f"{cell:>14}" for cell in cells) + note, flush=True)


def judge(sides: list[Side], work: Work, has_bars: bool) -> None:
    """Prints speed and memory relative to the others; the bars apply to TRL's fastest settings."""
    ours = next((side for side in sides if side.key == "turnwise"), None)
    trls = [side for side in sides if side.script == "trl_grpo.py"]
    quickest = max(trls, key=lambda side: median(side.speeds), default=None)
    for other in sides:
        if ours is None or other is ours:
            continue
        ratio = median(ours.speeds) / median(other.speeds)
        words = [f"{ratio:.2f}x the speed of {other.name}"]
        bars = has_bars and other is quickest
        if bars:
            bar = BARS[work.name]
            words.append(f"(bar {bar:.0f}x: {'pass' if ratio >= bar else 'FAIL'})")
        memory = f"memory over the imports {ours.added_mib:,.0f} MiB, its {other.added_mib:,.0f}"
        memory += f"; in all {ours.peak_mib:,.0f}, its {other.peak_mib:,.0f}"
        if bars:
            fits = ours.added_mib <= other.added_mib and ours.peak_mib <= other.peak_mib
            memory += f" (bar, no more: {'pass' if fits else 'FAIL'})"
        print(f"  {' '.join(words)}; {memory}", flush=True)


def record_step(sides: list[Side], work: Work, model: str) -> None:
    """Records turnwise with each other library, at its fastest settings, as one work."""
    ours = [side for side in sides if side.key == "turnwise"]
    if len(sides) == 1:
        record(f"train_step alone/{model}/{work.name}", figures_of(sides[0], "turnwise"))
    for script, label, folder in (
        ("trl_grpo.py", "TRL", model),
        ("agilerl_grpo.py", "AgileRL", "agilerl"),
    ):
        others = [side for side in sides if side.script == script]
        if ours and others:
            other = max(others, key=lambda side: median(side.speeds))
            ratio = {"speed-up": median(ours[0].speeds) / median(other.speeds)}
            figures = figures_of(ours[0], "turnwise") | figures_of(other, label) | ratio
            record(f"train_step/{folder}/{work.name}", figures)


def figures_of(side: Side, name: str) -> dict[str, float]:
    play = median(side.steady("generate"))
    return {
        f"{name} tokens/s": median(side.speeds),
        f"{name} MiB": side.peak_mib,
        f"{name} play s": play,
        f"{name} update s": median(side.steady("step")) - play,
    }


def save_model(name: str, folder: str) -> None:
    """Saves the weights and the tokenizer for all sides, with one chat template."""
    import torch

    from turnwise.models import load_model
    from turnwise.models.load import without_progress_bars

    loaded = load_model(MODELS[name], dtype=torch.float32, device="cpu")
    loaded.tokenizer.chat_template = CHAT_TEMPLATE
    with without_progress_bars():
        for part in (loaded.model, loaded.tokenizer):
            part.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time a training step of turnwise, TRL, AgileRL.")
    parser.add_argument("--model", choices=MODELS, default="tiny")
    parser.add_argument("--turns", choices=TURNS, default="both")
    parser.add_argument("--steps", type=int, default=8, help="measured steps of each process")
    parser.add_argument("--warm-up", type=int, default=2, help="steps before the measured ones")
    parser.add_argument("--rounds", type=int, default=2, help="processes of each side")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--clock", choices=["wall", "cpu"], default="wall", help="cpu: for a busy machine, 1 thread"
    )
    keys = ["turnwise", "trl", "trl-16", "trl-defaults", "agilerl"]
    parser.add_argument("--sides", nargs="+", choices=keys, default=keys)
    parser.add_argument("--quick", action="store_true", help="small sizes; bars are not judged")
    add_record_option(parser)
    options = parser.parse_args()
    works = QUICK if options.quick else WORKS[options.model]
    print(f"{date.today()}, {describe_machine()}, {options.threads} threads")
    print(
        f"GRPO, {options.model}, float32, {options.rounds} processes of each side, "
        f"{options.steps} steps each after {options.warm_up}, {options.clock} time"
    )
    with tempfile.TemporaryDirectory() as folder:
        save_model(options.model, folder)
        for work in works:
            if work.name in TURNS[options.turns]:
                sides = measure(sides_for(options.sides), work, folder, options)
                show(sides, work)
                judge(sides, work, has_bars=not options.quick)
                if options.record and not options.quick:
                    record_step(sides, work, options.model)


if __name__ == "__main__":
    main()
