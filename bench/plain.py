"""What each fast form gains: the same work with it and with its plain form, in one process.

    python bench/plain.py                          every fast form, on a CPU
    python bench/plain.py --only algo.ppo chat     one form, and all of one package
    python bench/plain.py --threads 2              wall time, for forms that concern threads
    python bench/plain.py --device cuda            random weights in the shape of Qwen2.5-0.5B

A gain is the time of the plain form divided by that of the fast one: the median over neighbouring
runs, so that a slow minute of the machine is slow for both. On a CPU with one thread it is the
processor's time. `memory` is the same for the peak of what is allocated on top of the inputs.
A fast form stays only if it gains at least 5 % on some work.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

# Tokenizers reads it when it first encodes: one core is one core.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from algo import estimator_step, loss_step, make_batch, peak_mebibytes
from decode import SHAPES, make_work, run_engine
from overhead import our_measure
from results import Figure, add_record_option, describe_machine, record
from turnwise import algo
from turnwise.inference.local import LocalEngine
from turnwise.learner import Learner, LearnerOptions, PolicyValueModel, PPOBatch, add_lora
from turnwise.models import load_tokenizer
from turnwise.plain_mode import FORMS, plain_mode

SMOLLM2 = {**SHAPES["smollm2"], "num_hidden_layers": 4}
"""Few of its layers: the others repeat them."""
QWEN: dict[str, Any] = {
    "vocab_size": 151936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
ADAPTERS_ONLY = {"engine.merged_lora", "learner.adapters"}
GPU_ONLY = {
    "engine.sampling",
    "learner.adam_kernels",
    "learner.gated_kernels",
    "learner.kept_logits",
    "learner.log_prob_kernels",
    "learner.rms_norm",
    "learner.rotary",
}
CPU_ONLY = {"engine.openmp", "engine.transposed"}

Step = Callable[[], object]


@dataclass(frozen=True)
class Work:
    """Something that is done with a fast form and without it."""

    name: str
    make: Callable[[], Step]
    """Called in the mode that is measured: engines and learners keep the forms of their making."""
    forms: tuple[str, ...]
    """Names of forms, or of packages, that take part in it."""
    measures_memory: bool = False

    def uses(self, form: str) -> bool:
        if form in ADAPTERS_ONLY:
            return form in self.forms
        return form in self.forms or form.partition(".")[0] in self.forms


def algo_works(device: str) -> Iterator[Work]:
    estimators = {
        "grpo": ("algo.masking",),
        "reinforce_plus_plus": ("algo.masking", "algo.recurrence"),
    }
    losses = {"ppo": ("algo.ppo",), "gspo": ("algo.tiles",), "sapo": ("algo.tiles",)}
    for rows, length in ((1024, 2048), (64, 256)):
        batch = make_batch(rows, length, "several turns", device)
        batch["response_mask"] = batch["response_mask"].bool()
        for name, forms in estimators.items():
            step = partial(estimator_step, algo.ADVANTAGE_ESTIMATORS[name], batch)
            yield Work(f"{name} {rows} x {length}", step, forms)
        for name, forms in losses.items():
            step = partial(loss_step, algo.POLICY_LOSSES[name], batch)
            yield Work(f"{name} {rows} x {length}", step, forms, measures_memory=True)


def episode_works() -> Iterator[Work]:
    """Everything of an episode but the model, as bench/overhead.py plays it."""
    tokenizer = load_tokenizer("tiny")
    for num_episodes in (1, 64):
        name = f"episodes without a model, {num_episodes} at once"
        make = partial(partial, our_measure(tokenizer, 16), num_episodes)
        yield Work(name, make, ("chat",))


def engine_works(device: str) -> Iterator[Work]:
    models = ["qwen2.5-0.5b"] if device == "cuda" else ["tiny", "smollm2"]
    for name in models:
        batch, num_new = {"tiny": (64, 64), "smollm2": (16, 16)}.get(name, (64, 128))
        kinds = {
            "1 turn": make_work(batch, 128, num_new),
            "6 turns": make_work(batch, 40, 12, 6),
            "groups of 8": make_work(batch, 128, num_new),
        }
        prompts = kinds["groups of 8"].prompts
        kinds["groups of 8"].prompts = [prompts[i // 8 * 8] for i in range(len(prompts))]
        for kind, work in kinds.items():

            def make(name: str = name, work: Any = work) -> Step:
                engine = LocalEngine(make_model(name, device))
                return partial(run_engine, engine, work)

            yield Work(f"{name}, {len(work.prompts)} x {kind}", make, ("engine",))

        def make_adapted(name: str = name, work: Any = kinds["1 turn"]) -> Step:
            engine = LocalEngine(add_lora(make_model(name, device), rank=16))

            def step() -> None:
                engine.update_weights(None)  # a step of training merges once
                run_engine(engine, work)

            return step

        title = f"{name} with LoRA, {batch} x 1 turn"
        yield Work(title, make_adapted, ("engine.merged_lora",))


def learner_works(device: str) -> Iterator[Work]:
    models = ["qwen2.5-0.5b"] if device == "cuda" else ["tiny", "smollm2"]
    for name in models:
        batch = make_episodes(*{"tiny": (32, 256), "smollm2": (8, 64)}.get(name, (64, 512)))

        def make(rank: int = 0, name: str = name, batch: PPOBatch = batch) -> Step:
            policy = make_model(name, device)
            policy = add_lora(policy, rank=rank) if rank else policy
            learner = Learner(
                PolicyValueModel(policy, critic=None), LearnerOptions(learning_rate=1e-6)
            )
            return lambda: (learner.score(batch), learner.update(batch))

        rows, length = batch.input_ids.shape
        title = f"{name}, score and update {rows} x {length}"
        yield Work(title, make, ("learner",), measures_memory=True)
        adapted = partial(make, 16)
        yield Work(f"{title}, LoRA", adapted, ("learner.adapters",), measures_memory=True)


def make_episodes(num_rows: int, length: int) -> PPOBatch:
    """Groups of 8 episodes with one prompt; turns and observations of some 20 tokens alternate."""
    rng = random.Random(0)
    ids, sampled, present = (torch.zeros(num_rows, length, dtype=torch.long) for _ in range(3))
    for row in range(num_rows):
        end = rng.randrange(length // 2, length + 1)
        group = random.Random(row // 8)
        prompt = [group.randrange(500) for _ in range(length // 4)]
        rest = [rng.randrange(500) for _ in range(end - len(prompt))]
        ids[row, :end] = torch.tensor(prompt + rest)
        present[row, :end] = 1
        sampled[row, len(prompt) : end] = torch.arange(end - len(prompt)) // 20 % 2 == 0
    log_probs = torch.full(ids.shape, -6.0)
    advantages = torch.randn(ids.shape, generator=torch.Generator().manual_seed(0))
    return replace(
        PPOBatch(ids, sampled, present), sampler_log_probs=log_probs, advantages=advantages
    )


def make_model(name: str, device: str) -> Any:
    torch.manual_seed(0)
    model: Any
    if device == "cpu":
        shape: dict[str, Any] = SMOLLM2 if name == "smollm2" else SHAPES[name]
        model = LlamaForCausalLM(LlamaConfig(**shape))  # type: ignore[no-untyped-call]
    else:
        model = Qwen2ForCausalLM(Qwen2Config(**QWEN))  # type: ignore[no-untyped-call]
    return model.to(device, torch.bfloat16 if device == "cuda" else torch.float32).eval()


def now(options: argparse.Namespace) -> float:
    """Seconds since some moment."""
    if options.device == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time() if options.threads == 1 else time.perf_counter()


def measure(form: str, work: Work, options: argparse.Namespace) -> tuple[float, float | None]:
    """How much less time and memory the work takes with the fast form: plain / fast."""
    modes: list[list[str]] = [[form], []]
    steps: list[Step] = []
    times: list[list[float]] = [[], []]
    for mode in modes:
        with plain_mode(mode):
            steps.append(work.make())
    for repeat in range(options.repeats + 1):
        for mode, step, taken in zip(modes, steps, times, strict=True):
            with plain_mode(mode):
                start = now(options)
                step()
                if repeat:  # the first one warms up
                    taken.append(now(options) - start)
        if repeat and times[0][-1] > 5 * times[1][-1]:
            break  # so large a gain needs no median
    memory = None
    if work.measures_memory:
        held = []
        for mode, step in zip(modes, steps, strict=True):
            with plain_mode(mode):
                held.append(peak_mebibytes(step, options.device))
        memory = held[0] / held[1]
    return median(plain / fast for plain, fast in zip(*times, strict=True)), memory


def summary(found: list[tuple[float, float | None]]) -> dict[str, Figure]:
    """The least and the most that a form gains over all works."""
    figures: dict[str, Figure] = {}
    for name, column in zip(("gain", "memory"), zip(*found, strict=True), strict=True):
        if values := [value for value in column if value is not None]:
            figures[name] = [min(values), max(values)]
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--only", nargs="+", default=[], help="forms, or packages of forms")
    parser.add_argument("--work", default="", help="a part of a work's name")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    add_record_option(parser)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = options.device
    skipped = CPU_ONLY if device == "cuda" else GPU_ONLY
    forms = [form for form in FORMS if form not in skipped]
    if options.only:
        forms = [f for f in forms if f in options.only or f.partition(".")[0] in options.only]
    print(describe_machine(device))
    print("| form | what it does | work | gain | memory |\n|---|---|---|---|---|")
    works = [
        *algo_works(device),
        *episode_works(),
        *engine_works(device),
        *learner_works(device),
    ]
    for form in forms:
        found: list[tuple[float, float | None]] = []
        for work in works:
            if not work.uses(form) or options.work not in work.name:
                continue
            gain, memory = measure(form, work, options)
            found.append((gain, memory))
            times = [f"{gain:.2f}x", "" if memory is None else f"{memory:.2f}x"]
            print(f"| {' | '.join([form, FORMS[form], work.name, *times])} |", flush=True)
        if options.record and found:
            record(f"plain/{device}/{form}", summary(found), device)


if __name__ == "__main__":
    main()
