"""How fast a real model learns in half precision: SmolLM2-135M, from a checkpoint in bfloat16.

    python bench/gpu/learn_real.py                        bfloat16 and float32, all tasks, 5 seeds
    python bench/gpu/learn_real.py --variants threshold nearest stochastic
    python bench/gpu/learn_real.py --variants trl --tasks sums           in TRL's environment
    python bench/gpu/learn_real.py --model tiny --quick   to see that everything runs; any device

Tasks: `additions` of numbers up to 60 (one turn of up to 12 tokens) with nothing but the number,
which the model hardly ever writes at first; `sums`, the same with words around it; and `totals`, a
running total of three numbers (three turns). GRPO on 32 groups of 8, one optimiser step an update.
The checkpoint is rounded to bfloat16 first, as hubs have them; float32 computes with the same one.

Variants: `bfloat16` and `float32` are what users get. `threshold`, `nearest` and `stochastic` round
the masters to bfloat16 in torch, without the kernel: by a fixed threshold for each weight, to the
nearest number, at random anew in every step. `trl` is TRL's GRPO with float32 masters and autocast.
Several runs share the GPU: steps are what is compared, not seconds.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from results import add_record_option, record
from turnwise import BaseEnvironment, ConfigStore, Trainer, load_model

VARIANTS = ("bfloat16", "float32", "threshold", "nearest", "stochastic", "trl")
GOAL, WINDOW = 0.5, 5
"""A run reaches the goal with the first step whose mean reward over this many steps does."""
PEAK = 60
NUM_GROUPS, GROUP = 32, 8


def is_number(text: str, number: int) -> bool:
    return re.fullmatch(rf"\s*{number}\s*\.?\s*", text) is not None


def ends_with_number(text: str, number: int) -> bool:
    return re.findall(r"\d+", text)[-1:] == [str(number)]


class Additions(BaseEnvironment):
    """One addition; the answer is the number alone."""

    max_steps = 1
    quick = True

    def reset(self) -> str:
        self.a, self.b = self.rng.randint(0, PEAK), self.rng.randint(0, PEAK)
        return f"What is {self.a} + {self.b}? Answer with the number alone."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        is_right = is_number(action, self.a + self.b)
        return "", float(is_right), True, {"success": is_right}

    def get_state_description(self) -> str:
        return f"{self.a} + {self.b}"


class Sums(Additions):
    """One addition; the answer is the last number of the reply, whatever is around it."""

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        is_right = ends_with_number(action, self.a + self.b)
        return "", float(is_right), True, {"success": is_right}


class Totals(BaseEnvironment):
    """A running total of three numbers; each turn's answer is the total so far."""

    max_steps = 3
    quick = True

    def reset(self) -> str:
        self.total, self.turn = self.rng.randint(0, PEAK // 3), 0
        first = self.rng.randint(0, PEAK // 3)
        text = f"The total is {self.total}. Add {first}. Answer with the new total alone."
        self.total += first
        return text

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        reward = is_number(action, self.total) / self.max_steps
        self.turn += 1
        following = self.rng.randint(0, PEAK // 3)
        text = f"The total is {self.total}. Add {following}."
        self.total += following
        return text, reward, self.turn == self.max_steps, {}

    def get_state_description(self) -> str:
        return f"turn {self.turn}, total {self.total}"


TASKS: dict[str, type[BaseEnvironment]] = {
    "additions": Additions,
    "sums": Sums,
    "totals": Totals,
}


def round_differently(variant: str) -> None:
    """Make the optimiser round its masters another way, without its kernel."""
    from turnwise.learner import optimizer

    vars(optimizer)["_kernels_for"] = lambda parameters: None
    if variant == "threshold":
        return

    def rounded(values: torch.Tensor, dtype: torch.dtype, key: int, **_: Any) -> torch.Tensor:
        if variant == "nearest":
            return values.to(dtype)
        noise = torch.randint(0, 1 << 16, values.shape, dtype=torch.int32, device=values.device)
        return ((values.view(torch.int32) + noise) & ~0xFFFF).view(torch.float32).to(dtype)

    vars(optimizer)["round_weight"] = rounded


def settings(
    arguments: argparse.Namespace, variant: str, seed: int, model: str, folder: Path
) -> ConfigStore:
    config = ConfigStore()
    config.model.model_name = model
    config.model.dtype = "float32" if variant == "float32" else "bfloat16"
    config.inference.max_tokens = 12
    config.inference.max_turns = 3
    config.inference.options = {"cache_tokens": 2**16}  # several runs share the memory
    training = config.training
    training.adv_estimator = "grpo"
    training.batch_size, training.group_size = NUM_GROUPS, GROUP
    if arguments.quick:
        training.batch_size, training.group_size = 2, 2
    training.learning_rate = arguments.learning_rate
    training.micro_batch_tokens = 4096  # several runs share the memory
    training.seed = seed
    training.num_epochs, training.steps_per_epoch = 1, arguments.steps
    training.lora_rank = arguments.lora
    config.checkpoint.output_dir = str(folder)
    config.checkpoint.save_interval = config.checkpoint.save_steps = 10**6
    config.checkpoint.keep_last_n = 1
    return config


def learn(
    arguments: argparse.Namespace, task: str, variant: str, seed: int, model: str, folder: Path
) -> dict[str, list[float]]:
    """Train once; return the rewards and some metrics of each step."""
    if variant == "trl":
        return {"reward": learn_by_trl(arguments, task, seed, model, folder)}
    if variant not in ("bfloat16", "float32"):
        round_differently(variant)
    config = settings(arguments, variant, seed, model, folder)
    with Trainer(config, TASKS[task](), resume="never") as trainer:
        history = trainer.fit()
        assert trainer.run_folder is not None
        shutil.rmtree(trainer.run_folder)  # with 1.9 GB of weights and moments
    names = ("reward", "weights_changed", "gap_mean", "gap_max", "effective_share")
    return {name: [m[name] for m in history if name in m] for name in names}


def learn_by_trl(
    arguments: argparse.Namespace, task: str, seed: int, model: str, folder: Path
) -> list[float]:
    """Train on additions or sums with TRL; return the mean reward of each step."""
    import trl  # type: ignore[import-not-found]
    from datasets import Dataset  # type: ignore[import-not-found]
    from datasets.table import InMemoryTable  # type: ignore[import-not-found]

    if task not in ("additions", "sums"):
        raise SystemExit("trl: only additions and sums; totals has several turns")
    is_right = is_number if task == "additions" else ends_with_number
    rng = random.Random(seed)
    rows = []
    for _ in range(NUM_GROUPS * arguments.steps):
        a, b = rng.randint(0, PEAK), rng.randint(0, PEAK)
        text = f"What is {a} + {b}? Answer with the number alone."
        rows.append({"prompt": [{"role": "user", "content": text}], "total": a + b})

    def score(completions: list[Any], total: list[int], **_: Any) -> list[float]:
        pairs = zip(completions, total, strict=True)
        return [float(is_right(answer[-1]["content"], number)) for answer, number in pairs]

    trainer = trl.GRPOTrainer(
        model,
        args=trl.GRPOConfig(
            output_dir=str(folder),
            bf16=True,
            model_init_kwargs={"dtype": "float32"},
            num_generations=GROUP,
            per_device_train_batch_size=NUM_GROUPS * GROUP,
            max_completion_length=12,
            max_steps=arguments.steps,
            learning_rate=arguments.learning_rate,
            lr_scheduler_type="constant",
            beta=0.0,
            gradient_checkpointing=False,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            seed=seed,
        ),
        reward_funcs=score,
        # With a fingerprint: one computed by pickling fails beside some versions of pyarrow.
        train_dataset=Dataset(InMemoryTable.from_pylist(rows), fingerprint=f"additions-{seed}"),
    )
    trainer.train()
    return [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]


def save_checkpoint(model: str, folder: Path) -> str:
    """Save a model in bfloat16, and return its folder."""
    loaded = load_model(model, dtype="float32", device="cpu")
    loaded.model.to(torch.bfloat16).save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return str(folder)


def steps_to_goal(rewards: Sequence[float]) -> float:
    """Return the first step that reaches the goal; infinity if none does."""
    for end in range(WINDOW, len(rewards) + 1):
        if mean(rewards[end - WINDOW : end]) >= GOAL:
            return end
    return float("inf")


def run_all(arguments: argparse.Namespace, model: str) -> dict[tuple[str, str], list[Any]]:
    """Run every task, variant and seed in a process of its own, some at a time."""
    waiting = [
        (task, variant, seed)
        for task in arguments.tasks
        for variant in arguments.variants
        for seed in range(arguments.seeds)
    ]
    running: dict[tuple[str, str, int], subprocess.Popen[bytes]] = {}
    curves: dict[tuple[str, str], list[Any]] = {}
    deadline = time.monotonic() + 60 * arguments.minutes
    while waiting or running:
        while waiting and len(running) < arguments.jobs:
            task, variant, seed = key = waiting.pop(0)
            name = f"{task}-{variant}-{seed}"
            child = [
                sys.executable,
                __file__,
                "--child",
                task,
                variant,
                str(seed),
                "--model",
                model,
            ]
            child += ["--steps", str(arguments.steps), "--out", str(arguments.out / name)]
            child += ["--learning-rate", str(arguments.learning_rate)]
            child += ["--lora", str(arguments.lora), *(["--quick"] if arguments.quick else [])]
            log = (arguments.out / f"{name}.log").open("wb")
            running[key] = subprocess.Popen(child, stdout=log, stderr=subprocess.STDOUT)
        time.sleep(0.2)
        for key, process in list(running.items()):
            if process.poll() is None and time.monotonic() < deadline:
                continue
            del running[key]
            name = "-".join(map(str, key))
            result = arguments.out / name / "curve.json"
            if process.poll() is None:
                process.kill()
                waiting.clear()
            if not result.exists():
                print(f"{name} has no result; {arguments.out / name}.log says why", flush=True)
                continue
            curves.setdefault(key[:2], []).append(json.loads(result.read_text()))
    return curves


def report(curves: dict[tuple[str, str], list[Any]], arguments: argparse.Namespace) -> None:
    for (task, variant), runs in curves.items():
        rewards = [run["reward"] for run in runs]
        early, late = ([mean(r[a:b] or [0.0]) for r in rewards] for a, b in ((12, 18), (30, 36)))
        steps = [steps_to_goal(r) for r in rewards]
        ends = [mean(r[-WINDOW:]) for r in rewards]
        figures: dict[str, Any] = {
            "13-18": early,
            "31-36": late,
            "end": ends,
        }
        if median(steps) != float("inf"):
            figures["steps to 0.5, median"] = median(steps)
        for name in ("weights_changed", "gap_mean", "gap_max"):
            values = [run[name] for run in runs if run.get(name)]
            if values:
                figures[name] = [mean(v[-WINDOW:]) for v in values]
        print(f"{task}, {variant}, steps to {GOAL}: {steps}", flush=True)
        print(f"  {figures}", flush=True)
        if arguments.record and not arguments.quick:
            suffix = f"/{arguments.learning_rate:g}" + ("/lora" if arguments.lora else "")
            record(f"gpu/learn_real/{task}/{variant}{suffix}", figures, "cuda")


def draw(out: Path, path: Path) -> None:
    """Draw the mean reward of each variant that a folder has, with the band of its seeds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    curves: dict[tuple[str, str], list[Any]] = {}
    for curve in sorted(out.glob("*/curve.json")):
        task, variant, _ = curve.parent.name.split("-")
        curves.setdefault((task, variant), []).append(json.loads(curve.read_text()))
    tasks = sorted({task for task, _ in curves})
    figure, axes = pyplot.subplots(1, len(tasks), figsize=(5 * len(tasks), 3.4), squeeze=False)
    for axis, task in zip(axes[0], tasks, strict=True):
        for variant in (v for t, v in curves if t == task):
            rows = [run["reward"] for run in curves[task, variant]]
            length = min(map(len, rows))
            columns = [[row[i] for row in rows] for i in range(length)]
            steps = range(1, length + 1)
            (line,) = axis.plot(steps, [mean(c) for c in columns], label=variant)
            low, high = [min(c) for c in columns], [max(c) for c in columns]
            axis.fill_between(steps, low, high, alpha=0.15, color=line.get_color(), lw=0)
        axis.set_title(task)
        axis.set_xlabel("step")
        axis.set_ylim(0, 1)
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("reward")
    axes[0][0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS[:2]))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--learning-rate", type=float, default=1e-5)
    parser.add_argument("--lora", type=int, default=0, help="rank of adapters; 0: all weights")
    parser.add_argument("--jobs", type=int, default=10, help="runs at a time")
    parser.add_argument("--minutes", type=float, default=60.0, help="time limit of all")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--out", type=Path, default=Path("runs/learn_real"))
    parser.add_argument("--picture", type=Path, help="draw what --out has, and run nothing")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    add_record_option(parser)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.child:
        task, variant, seed = arguments.child
        curve = learn(arguments, task, variant, int(seed), arguments.model, arguments.out)
        (arguments.out / "curve.json").write_text(json.dumps(curve))
        return 0
    if arguments.picture:
        draw(arguments.out, arguments.picture)
        return 0
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"{date.today()}, {name}, torch {torch.__version__}, {arguments.model}", flush=True)
    model = save_checkpoint(arguments.model, arguments.out / "checkpoint")
    curves = run_all(arguments, model)
    report(curves, arguments)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
