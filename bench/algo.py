"""Times the algorithms, and VERL's where that is installed.

    python bench/algo.py [--device cuda] [--quick] [--repeats 15] [--only gae grpo] [--record]

Times are medians of alternating runs (ours, VERL's, ours, ...), so that noise affects both. Where
VERL has several implementations of an estimator, its fastest counts. Each side gets the mask dtype
that it is written for: ours bool, VERL's int64 (`--int64` gives int64 to both). Memory is the peak
that a loss, forward and backward, allocates on top of its inputs.
"""

from __future__ import annotations

import argparse
import inspect
import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from importlib.util import find_spec
from statistics import median
from typing import Any

# The profiler announces itself on every use; read when torch is imported.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from results import add_record_option, describe_machine, record
from turnwise import algo

GROUP_SIZE = 8
GAMMA, LAM = 0.99, 0.95
# The least speed-up over VERL that we hold ourselves to, at full size.
GAE_BAR, ESTIMATOR_BAR, PPO_LOSS_BAR = 20.0, 1.0, 3.0

Step = Callable[[], object]


def make_batch(num_rows: int, length: int, turns: str, device: str) -> dict[str, Any]:
    """Returns the inputs of estimators and losses by the names of their arguments."""
    random = torch.Generator().manual_seed(0)
    shape = (num_rows, length)
    lengths = torch.randint(length // 8, length + 1, (num_rows, 1), generator=random)
    mask = torch.arange(length) < lengths
    if turns == "several turns":
        # Turns and observations are about 50 tokens long each.
        mask &= (torch.rand(shape, generator=random) < 0.02).cumsum(1) % 2 == 0
        mask[:, 0] = True
    starts = mask.clone()
    starts[:, 1:] &= ~mask[:, :-1]
    old_log_probs = torch.rand(shape, generator=random).clamp(min=1e-4).log()
    moved = 0.1 * torch.randn(shape, generator=random)
    tensors = {
        "response_mask": mask.long(),
        "token_level_rewards": torch.randn(shape, generator=random) * mask,
        "values": torch.randn(shape, generator=random),
        "advantages": torch.randn(shape, generator=random),
        "old_log_probs": old_log_probs,
        "log_probs": (old_log_probs + moved).clamp(max=-1e-4),
        "sum_pi_squared": torch.rand(shape, generator=random),
        "reward_baselines": torch.randn(num_rows, generator=random),
    }
    return {
        **{name: tensor.to(device) for name, tensor in tensors.items()},
        "index": np.arange(num_rows) // GROUP_SIZE,
        "anchor_states": [[turn % 7 for turn in range(n)] for n in starts.sum(1).tolist()],
        "gamma": GAMMA,
        "lam": LAM,
    }


def estimator_step(estimator: Callable[..., object], batch: Mapping[str, Any]) -> Step:
    # Ours are records of a function and what it needs; VERL's are plain functions.
    parameters = inspect.signature(getattr(estimator, "function", estimator)).parameters
    return partial(estimator, **{name: batch[name] for name in batch if name in parameters})


def loss_step(loss: Callable[..., tuple[torch.Tensor, Any]], batch: Mapping[str, Any]) -> Step:
    log_probs = batch["log_probs"].detach().requires_grad_()

    def forward_backward() -> object:
        value, _ = loss(
            batch["old_log_probs"], log_probs, batch["advantages"], batch["response_mask"]
        )
        return torch.autograd.grad(value, log_probs)[0]

    return forward_backward


def verl_estimators(batch: Mapping[str, Any], turns: str) -> dict[str, list[Step]]:
    from verl.trainer.config import AlgoConfig
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY

    forms = {name: [name] for name in algo.ADVANTAGE_ESTIMATORS if name in ADV_ESTIMATOR_REGISTRY}
    forms["grpo"].append("grpo_vectorized")
    forms["rloo"].append("rloo_vectorized")
    forms["optimal_token_baseline"].append("tir_optimal_token_baseline")
    if turns == "several turns":
        # On several turns VERL's first form compares tokens at other positions than ours does.
        forms["optimal_token_baseline"].remove("optimal_token_baseline")
    batch = {**batch, "config": AlgoConfig(gamma=GAMMA, lam=LAM)}
    registry = {form: ADV_ESTIMATOR_REGISTRY[form] for some in forms.values() for form in some}
    for form in ("grpo", "grpo_vectorized"):
        registry[f"{form} without std"] = partial(registry[form], norm_adv_by_std_in_grpo=False)
    forms["dr_grpo"] = [f"{form} without std" for form in forms["grpo"]]
    return {
        name: [estimator_step(registry[form], batch) for form in some]
        for name, some in forms.items()
    }


def verl_losses(batch: Mapping[str, Any]) -> dict[str, list[Step]]:
    from verl.trainer.ppo import core_algos as verl
    from verl.workers.config import ActorConfig

    config = ActorConfig(strategy="fsdp", rollout_n=1, use_dynamic_bsz=True)
    losses = {
        **{name: verl.POLICY_LOSS_REGISTRY.get(name) for name in algo.POLICY_LOSSES},
        "ppo": verl.compute_policy_loss_vanilla,
        "reinforce": verl.compute_policy_loss_reinforce,
    }
    return {name: [loss_step(partial(loss, config=config), batch)] for name, loss in losses.items()}


def time_in_turns(steps: list[Step], repeats: int, device: str) -> list[list[float]]:
    """Returns the milliseconds of every run of each step."""
    times: list[list[float]] = [[] for _ in steps]
    num_warm_up = 2
    for repeat in range(num_warm_up + repeats):
        for step, taken in zip(steps, times, strict=True):
            start = time.perf_counter()
            step()
            if device == "cuda":
                torch.cuda.synchronize()
            if repeat >= num_warm_up:
                taken.append(1e3 * (time.perf_counter() - start))
    return times


def peak_mebibytes(step: Step, device: str) -> float:
    """Returns the peak memory of the step on top of what was allocated before it."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        return float(torch.cuda.max_memory_allocated() - before) / 2**20
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    assert profiler.profiler is not None
    assert profiler.profiler.kineto_results is not None
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = np.cumsum([e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())])
    return float(held.max()) / 2**20


@dataclass(frozen=True)
class Table:
    """Prints a line for each algorithm as it is measured, and keeps its figures."""

    device: str
    repeats: int
    judges: bool
    """Whether the bars apply."""
    figures: dict[str, dict[str, list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    """By work and name: the values for one turn and for several turns."""

    def head(self, title: str) -> None:
        columns = ["ours ms", "VERL ms", "speed-up", "ours MiB", "VERL MiB", "bar"]
        print(f"\n{title:<32}" + "".join(f"{column:>10}" for column in columns))

    def line(
        self, name: str, ours: Step, verls: list[Step], bar: float | None, is_loss: bool
    ) -> None:
        ours_ms, *all_verl_ms = time_in_turns([ours, *verls], self.repeats, self.device)
        memory = [peak_mebibytes(step, self.device) for step in [ours, *verls] if is_loss]
        kind = "losses" if is_loss else "advantages"
        alone = "" if all_verl_ms else " alone"  # does not replace the comparison in the results
        kept = self.figures[f"algo{alone}/{self.device}/{kind}/{name}"]
        kept["ours ms"].append(median(ours_ms))
        if is_loss:
            kept["ours MiB"] = [memory[0]]
        cells = [f"{median(ours_ms):.2f}", "", "", *(f"{x:.1f}" for x in memory)]
        cells += [""] * (6 - len(cells))
        if all_verl_ms:
            verl_ms = min(all_verl_ms, key=median)
            # Ratios of adjacent runs: a slow phase of the machine affects both.
            speed_up = median(v / o for v, o in zip(verl_ms, ours_ms, strict=True))
            cells[1:3] = [f"{median(verl_ms):.2f}", f"{speed_up:.2f}x"]
            kept["VERL ms"].append(median(verl_ms))
            kept["speed-up"].append(speed_up)
            if is_loss:
                kept["VERL MiB"] = [memory[1]]
            if bar is not None and self.judges:
                passed = speed_up >= bar and (not is_loss or memory[0] <= memory[1])
                cells[5] = f"{bar:.0f}x {'pass' if passed else 'FAIL'}"
        print(f"  {name:<30}" + "".join(f"{cell:>10}" for cell in cells).rstrip(), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the algorithms, and VERL's if installed.")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--quick", action="store_true", help="small sizes; bars are not judged")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--only", nargs="+", default=[], help="names of algorithms")
    parser.add_argument("--int64", action="store_true", help="give int64 masks to ours too")
    add_record_option(parser)
    args = parser.parse_args()
    shape = (64, 256) if args.quick else (1024, 2048)
    has_verl = find_spec("verl") is not None
    table = Table(args.device, args.repeats, judges=not args.quick)
    print(
        f"{date.today()}, {describe_machine(args.device)}, {torch.get_num_threads()} threads, "
        f"torch {torch.__version__}"
    )
    print(f"{shape[0]} x {shape[1]}, float32" + ("" if has_verl else "; VERL is not installed"))
    for turns in ("one turn", "several turns"):
        batch = make_batch(*shape, turns, args.device)
        mask = batch["response_mask"]
        own_batch = {**batch, "response_mask": mask if args.int64 else mask.bool()}
        table.head(f"advantages, {turns}")
        verls = verl_estimators(batch, turns) if has_verl else {}
        for name, estimator in algo.ADVANTAGE_ESTIMATORS.items():
            bar = GAE_BAR if name == "gae" else ESTIMATOR_BAR
            if not args.only or name in args.only:
                ours = estimator_step(estimator, own_batch)
                table.line(name, ours, verls.get(name, []), bar, is_loss=False)
        table.head(f"losses, {turns}")
        verls = verl_losses(batch) if has_verl else {}
        for name, loss in algo.POLICY_LOSSES.items():
            loss_bar = PPO_LOSS_BAR if name == "ppo" else None
            if not args.only or name in args.only:
                ours = loss_step(loss, own_batch)
                table.line(name, ours, verls.get(name, []), loss_bar, is_loss=True)
    if args.record and not args.quick:
        for work, figures in table.figures.items():
            single = {name: v if len(v) > 1 else v[0] for name, v in figures.items()}
            record(work, single, args.device)


if __name__ == "__main__":
    main()
