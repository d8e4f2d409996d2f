"""Times the trainer on a GPU: a GRPO step, packed and padded updates, the memory of log-probs.

    python bench/gpu/trainer_check.py            SmolLM2-135M in bfloat16
    python bench/gpu/trainer_check.py --quick    tiny, to see that everything runs; any device

A step includes everything from the end of one to the end of the next: episodes, rewards, log-probs,
the update, records on disk. Updates are timed on the lengths of real episodes.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "peers"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from measure import Order, Report, Work, fitted
from turnwise_grpo import Notes, World, never_stop

from results import add_record_option, record
from turnwise import ConfigStore
from turnwise.chat import ChatFormat
from turnwise.env import environment_factory
from turnwise.learner import Learner, LearnerOptions, PolicyValueModel, PPOBatch
from turnwise.learner.log_probs import Head, chosen_log_probs
from turnwise.models import load_model
from turnwise.trainer import Trainer
from turnwise.trainer.stopping import StopRequest
from turnwise.trainer.warm_start import played_streams

STEP = Work("one turn", 8, 8, 128, 128)
MOST_SECONDS, MOST_GIB, LEAST_RATIO = 0.5, 8.0, 1.5
JUDGED_TOKENS = 8192
"""`micro_batch_tokens` of the step that the bars apply to."""
PEAK_FLOPS = 989e12
"""The peak of an H200 in bfloat16, without sparsity."""
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
GAMES = {
    "guess-number": "guess-number",
    "grid-world": "grid-world",
    "shop": f"{EXAMPLES}/shop.py:Shop",
    "alphabet-sort": f"{EXAMPLES}/alphabet_sort.py:AlphabetSort",
}
JUDGED = "grid-world"
"""The bar applies to this game: random episodes of the others hardly differ in length."""


class Device:
    """Measures time and memory on one device."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_gpu = name == "cuda"

    def wait(self) -> None:
        if self.is_gpu:
            torch.cuda.synchronize()

    def forget_peak(self) -> float:
        """Resets the peak of the memory; returns the GiB in use."""
        if not self.is_gpu:
            return 0.0
        gc.collect()  # earlier objects may be in reference cycles
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated() / 2**30

    @property
    def peak_gib(self) -> tuple[float, float]:
        """Peak GiB allocated and reserved since the last reset."""
        if not self.is_gpu:
            return 0.0, 0.0
        return (
            torch.cuda.max_memory_allocated() / 2**30,
            torch.cuda.max_memory_reserved() / 2**30,
        )

    def seconds(self, work: Callable[[], Any], repeats: int) -> float:
        """Returns the median of several runs, after one for warm-up."""
        found = []
        for _ in range(repeats + 1):
            self.wait()
            started = time.perf_counter()
            work()
            self.wait()
            found.append(time.perf_counter() - started)
        return median(found[1:])


def step_config(
    folder: str, work: Work, num_steps: int, micro_batch_tokens: int | None
) -> ConfigStore:
    config = ConfigStore()
    config.inference.max_tokens = work.new_tokens
    config.inference.max_turns = 1
    training = config.training
    training.adv_estimator = "grpo"
    training.batch_size, training.group_size = work.num_prompts, work.group_size
    training.learning_rate = 1e-6
    training.micro_batch_tokens = micro_batch_tokens
    training.num_epochs, training.steps_per_epoch = 1, num_steps
    config.checkpoint.output_dir = folder
    return config


def time_step(
    device: Device,
    loaded: Any,
    work: Work,
    num_steps: int,
    micro_batch_tokens: int | None,
    is_recorded: bool = False,
) -> bool:
    """Times GRPO steps of `Trainer`, as a user runs it."""
    chat = ChatFormat(loaded.tokenizer)

    def prompt_length(text: str) -> int:
        return len(chat.prompt_ids([{"role": "user", "content": text}]))

    prompts = [fitted(work.prompt_tokens, prompt_length, i) for i in range(work.num_prompts)]
    order, report = Order(work, "", num_steps, 1), Report("turnwise", 0.0)
    World.num_turns = World.max_steps = 1
    never_stop()
    held = device.forget_peak()
    with (
        tempfile.TemporaryDirectory() as folder,
        Trainer(
            step_config(folder, work, num_steps, micro_batch_tokens),
            World,
            dataset=[{"prompt": prompt} for prompt in prompts],
            model=loaded.model,
            tokenizer=loaded.tokenizer,
            reporter=Notes(order, report),
        ) as trainer,
    ):
        history = trainer.fit(1, num_steps)
    allocated, reserved = device.peak_gib
    steps, plays = report.step[3:], report.generate[3:]
    step = median(steps)
    print(
        f"GRPO step, {work.num_episodes} x ({work.prompt_tokens} + {work.new_tokens}): "
        f"{step:.3f} s ({min(steps):.3f}-{max(steps):.3f}), playing {median(plays):.3f} s, "
        f"{work.num_sampled / step:,.0f} sampled tokens/s, "
        f"{micro_batch_tokens or 'all'} tokens at once; "
        f"log-prob gap {history[-1].get('gap_max', 0.0):.4f}"
    )
    print(
        f"  peak {allocated:.2f} GiB allocated, {reserved:.2f} reserved ({held:.2f} at the start)"
    )
    is_fine = step <= MOST_SECONDS and reserved <= MOST_GIB
    if is_recorded:
        record("gpu/trainer/step", {"s": step, "GiB": reserved}, "cuda")
    print(f"  bar: {MOST_SECONDS} s, {MOST_GIB:g} GiB: {'pass' if is_fine else 'FAIL'}", flush=True)
    return is_fine


def real_batch(loaded: Any, environment: str, num_episodes: int) -> PPOBatch:
    """Returns episodes of a game that the random player played."""
    from turnwise.episode import EpisodeCollector
    from turnwise.episode.types import EpisodeTask
    from turnwise.inference import ScriptedEngine

    factory = environment_factory(environment, ConfigStore().environment)
    collector = EpisodeCollector(ScriptedEngine(loaded.tokenizer), factory)
    tasks = [EpisodeTask(seed) for seed in range(num_episodes)]
    streams = played_streams(collector, "random", tasks, StopRequest(print))
    batch = PPOBatch.from_streams(streams)
    ones = torch.ones(batch.input_ids.shape)
    return PPOBatch(
        batch.input_ids,
        batch.response_mask,
        batch.attention_mask,
        old_log_probs=-ones,
        advantages=torch.randn(len(batch), 1, generator=torch.Generator().manual_seed(0)) * ones,
    )


def time_layouts(
    device: Device, loaded: Any, num_episodes: int, budget: int | None, is_recorded: bool = False
) -> bool:
    """Times updates on real lengths, packed and padded, and prints the MFU."""
    num_weights = sum(p.numel() for p in loaded.model.parameters())
    is_fine = True
    for game, environment in GAMES.items():
        batch = real_batch(loaded, environment, num_episodes)
        assert batch.attention_mask is not None
        lengths = batch.attention_mask.sum(1)
        seconds = {}
        for layout in ("packed", "padded"):
            model = PolicyValueModel(loaded.model, None, layout=layout)
            options = LearnerOptions(learning_rate=1e-7, micro_batch_tokens=budget)
            learner = Learner(model, options)
            seconds[layout] = device.seconds(partial(learner.update, batch), 3)
        num_tokens = int(lengths.sum())
        flops = 6 * num_weights * num_tokens / seconds["packed"]
        ratio = seconds["padded"] / seconds["packed"]
        if is_recorded:
            record(f"gpu/trainer/update on {game}", {"packed speed-up": ratio}, "cuda")
        if game == JUDGED:
            is_fine = ratio >= LEAST_RATIO
        print(
            f"update on {game}, {len(batch)} episodes of {int(lengths.min())}-{int(lengths.max())} "
            f"tokens: packed {seconds['packed']:.3f} s, padded {seconds['padded']:.3f} s, "
            f"{ratio:.2f}x; {num_tokens / seconds['packed']:,.0f} tokens/s, "
            f"MFU {flops / PEAK_FLOPS:.1%}",
            flush=True,
        )
    print(f"  bar: {LEAST_RATIO}x on {JUDGED}: {'pass' if is_fine else 'FAIL'}", flush=True)
    return is_fine


def measure_log_probs(device: Device, is_recorded: bool) -> None:
    """Prints the memory of log-probs with their backward, without inputs and gradients."""
    for vocab_size in (49_152, 196_608):
        for num_tokens in (4_096, 32_768):
            hidden = torch.randn(num_tokens, 576, device=device.name, dtype=torch.bfloat16)
            weight = torch.randn(vocab_size, 576, device=device.name, dtype=torch.bfloat16)
            hidden.requires_grad_(True)
            weight.requires_grad_(True)
            targets = torch.randint(vocab_size, (num_tokens,), device=device.name)
            before = device.forget_peak()
            chosen, entropy = chosen_log_probs(hidden, Head(weight), targets)
            (chosen.sum() + entropy.sum()).backward()  # type: ignore[no-untyped-call]
            extra = (device.peak_gib[0] - before) * 1024
            gradients = (hidden.numel() + weight.numel()) * 2 / 2**20
            if is_recorded and vocab_size == 49_152:
                record("gpu/trainer/log-probs", {"GiB": (extra - gradients) / 1024}, "cuda")
            print(
                f"log-probs and gradient, {num_tokens:,} tokens x a vocabulary of {vocab_size:,}: "
                f"{extra:,.0f} MiB, of which gradients {gradients:,.0f}; "
                f"all logits in float32 would be {num_tokens * vocab_size * 4 / 2**20:,.0f}",
                flush=True,
            )
            del hidden, weight, targets, chosen, entropy


def main() -> int:
    parser = argparse.ArgumentParser(description="Time the trainer on a GPU.")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--steps", type=int, default=13, help="the first three are warm-up")
    add_record_option(parser)
    options = parser.parse_args()
    device = Device("cuda" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name() if device.is_gpu else "CPU"
    print(f"{date.today()}, {name}, torch {torch.__version__}")
    if options.quick:
        loaded = load_model("tiny")
        time_step(device, loaded, Work("one turn", 2, 2, 64, 8), 5, None)
        time_layouts(device, loaded, 8, 1024)
        return 0
    loaded = load_model("smollm2-135m")
    time_step(device, loaded, STEP, options.steps, None)
    is_fine = time_step(device, loaded, STEP, options.steps, JUDGED_TOKENS, options.record)
    is_fine &= time_layouts(device, loaded, 256, None, options.record)
    measure_log_probs(device, options.record)
    return 0 if is_fine else 1


if __name__ == "__main__":
    raise SystemExit(main())
