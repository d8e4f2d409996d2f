"""Compares the algorithms on a GPU with float64 on the CPU, and checks that none loops over time.

python bench/gpu/check.py [--record]       (needs torch with CUDA; nothing else)
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from results import record
from turnwise import algo

NUM_EPISODES, NUM_TOKENS, GROUP_SIZE, NUM_TURNS = 64, 1500, 4, 6


def make_batch() -> dict[str, Any]:
    """Returns ragged episodes of several turns, in float64 on the CPU."""
    torch.manual_seed(0)
    shape = (NUM_EPISODES, NUM_TOKENS)
    lengths = torch.randint(NUM_TOKENS // 3, NUM_TOKENS + 1, (NUM_EPISODES, 1))
    position = torch.arange(NUM_TOKENS)
    in_turn = (position // (NUM_TOKENS // (2 * NUM_TURNS))) % 2 == 0
    mask = (position < lengths) & in_turn
    rewards = torch.where(torch.rand(shape) < 0.02, torch.randn(shape), 0.0).double()
    log_probs = -torch.rand(shape).double() * 3
    return {
        "token_level_rewards": rewards,
        "response_mask": mask,
        "values": torch.randn(shape).double(),
        "index": torch.arange(NUM_EPISODES) // GROUP_SIZE,
        "gamma": 0.99,
        "lam": 0.95,
        "reward_baselines": torch.randn(NUM_EPISODES).double(),
        "old_log_probs": log_probs,
        "sum_pi_squared": torch.rand(shape).double(),
        "anchor_states": [[i % 3, *range(20)] for i in range(NUM_EPISODES)],
        "log_probs": log_probs + 0.3 * torch.randn(shape).double(),
        "advantages": torch.randn(shape).double(),
    }


def to_gpu(batch: dict[str, Any]) -> dict[str, Any]:
    def move(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.float().cuda() if value.is_floating_point() else value.cuda()

    return {name: move(value) for name, value in batch.items()}


def advantage_difference(name: str, cpu: dict[str, Any], gpu: dict[str, Any]) -> float:
    expected = algo.compute_advantages(name, cpu)
    got = algo.compute_advantages(name, gpu)
    return max(largest(a, b) for a, b in zip(got, expected, strict=True))


def loss_difference(name: str, cpu: dict[str, Any], gpu: dict[str, Any]) -> float:
    results = []
    for batch in (gpu, cpu):
        log_probs = batch["log_probs"].clone().requires_grad_()
        torch.manual_seed(0)  # clip_cov draws tokens
        loss, _ = algo.get_policy_loss(name)(
            batch["old_log_probs"],
            log_probs,
            batch["advantages"],
            batch["response_mask"],
            loss_agg_mode="seq-mean-token-sum",
        )
        (gradient,) = torch.autograd.grad(loss, log_probs)
        results.append((loss.detach() / NUM_TOKENS, gradient))
    return max(largest(a, b) for a, b in zip(*results, strict=True))


def largest(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.double().cpu() - expected.double().cpu()).abs().max())


def count_kernels(work: Callable[[], Any]) -> int:
    from torch.profiler import ProfilerActivity, profile

    work()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as record:
        work()
        torch.cuda.synchronize()
    return sum(event.count for event in record.key_averages())


def kernels_of_gae(num_tokens: int) -> int:
    x = torch.randn(32, num_tokens, device="cuda")
    mask = torch.rand(32, num_tokens, device="cuda") > 0.3
    return count_kernels(lambda: algo.compute_gae_advantage_return(x, x, mask, 0.99, 0.95))


def seconds_of_gae(work: Callable[..., Any]) -> float:
    """Returns the median time of GAE on 1024 × 2048 tokens."""
    rewards, values = torch.randn(2, 1024, 2048, device="cuda")
    mask = torch.rand(1024, 2048, device="cuda") > 0.3
    times = []
    for _ in range(7):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work(rewards, values, mask, 0.99, 0.95)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


def loop_over_time(
    rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, gamma: float, lam: float
) -> torch.Tensor:
    """Computes GAE as it is usually written, for comparison."""
    advantage = next_value = torch.zeros_like(rewards[:, 0])
    advantages = torch.zeros_like(rewards)
    for t in reversed(range(rewards.shape[1])):
        error = rewards[:, t] + gamma * next_value - values[:, t]
        advantage = torch.where(mask[:, t], error + gamma * lam * advantage, advantage)
        next_value = torch.where(mask[:, t], values[:, t], next_value)
        advantages[:, t] = advantage
    return advantages


def main() -> int:
    if not torch.cuda.is_available():
        print("no GPU: torch.cuda.is_available() is False")
        return 2
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    cpu = make_batch()
    gpu = to_gpu(cpu)
    failures, worst = 0, 0.0
    for kind, names, difference in (
        ("advantages", algo.ADVANTAGE_ESTIMATORS, advantage_difference),
        ("loss", algo.POLICY_LOSSES, loss_difference),
    ):
        for name in names:
            value = difference(name, cpu, gpu)
            worst = max(worst, value)
            failures += value > 1e-4
            print(f"{kind:10s} {name:30s} max difference from float64 on the CPU {value:.1e}")
    short, long = kernels_of_gae(512), kernels_of_gae(8192)
    failures += long > 2 * short + 100
    print(f"GAE launches {short} kernels for 512 tokens, {long} for 8192")
    ours = seconds_of_gae(algo.compute_gae_advantage_return)
    loop = seconds_of_gae(loop_over_time)
    print(
        f"GAE of 1024 × 2048 tokens: {ours * 1e3:.2f} ms, as a loop over time {loop * 1e3:.0f} ms, "
        f"{loop / ours:.0f} times as long"
    )
    if "--record" in sys.argv:
        record("gpu/check", {"largest difference": worst}, "cuda")
    print("passed" if not failures else f"{failures} failed")
    return int(failures > 0)


if __name__ == "__main__":
    raise SystemExit(main())
