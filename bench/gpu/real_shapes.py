"""Times real model shapes on a GPU: updates on groups of episodes that share their prompt.

    python bench/gpu/real_shapes.py                    Qwen2.5-1.5B: 8 groups of 8 x (512 + 256)
    python bench/gpu/real_shapes.py --shape 7B --lora 32
    python bench/gpu/real_shapes.py --kernels ours liger torch         norms, rotary, MLPs
    python bench/gpu/real_shapes.py --kernels ours torch-adamw         the optimiser's step
    python bench/gpu/real_shapes.py --shape 7B --offload       a full fine-tune of 7B on one GPU
    python bench/gpu/real_shapes.py --groups 1 --members 1 --prompt 1024 --sampled 130048
                                                       one episode of 128k tokens
    python bench/gpu/real_shapes.py --sample --shape 7B                the local engine instead
    python bench/gpu/real_shapes.py --sample --groups 32               256 at once
    python bench/gpu/real_shapes.py --sample --turns 6 --sampled 64    with 256 tokens in between
    python bench/gpu/real_shapes.py --sample --all                     these three on one engine
    python bench/gpu/real_shapes.py --sample --shape 7B --lora 32      with adapters
    python bench/gpu/real_shapes.py --sample --all --backend vllm      vLLM instead
    python bench/gpu/real_shapes.py --sample --all --backend sglang attention_backend=fa3
    python bench/gpu/real_shapes.py --shape tiny       to see that everything runs; any device

An update is timed on groups that share their prompts, and on as many episodes of different prompts.
With the optimiser on the CPU, or without groups, it is timed once.

Weights are random, in bfloat16. The model FLOPs utilisation counts 6 operations per weight and
computed token, or 4 with LoRA, where the weights have no gradient.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import tempfile
import time
from functools import partial
from itertools import count, islice
from pathlib import Path
from statistics import median
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from results import add_record_option, record
from turnwise.inference import GenerationRequest, create_inference_engine
from turnwise.inference.local import LocalEngine
from turnwise.learner import Learner, LearnerOptions, PolicyValueModel, PPOBatch, optimizer
from turnwise.learner.fast import modules
from turnwise.learner.lora import add_lora
from turnwise.models import load_tokenizer

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "heads": (2, 1)},
    "0.5B": {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "heads": (14, 2),
    },
    "1.5B": {
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "heads": (12, 2),
    },
    "7B": {
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "heads": (28, 4),
    },
}
NAMES = {"local": "local", "vllm": "vLLM", "sglang": "SGLang"}
WORKS: list[dict[str, int]] = [{}, {"groups": 32}, {"turns": 6, "sampled": 64}]
"""What `--all` samples: 64 and 256 at once, and 64 conversations of several turns."""
OURS = dict(vars(modules))
ADAMW = optimizer._kernels_for
PEAK_FLOPS = 989e12
"""The peak of an H200 in bfloat16, without sparsity."""


def make_model(shape: str, device: str) -> Any:
    """Return a Qwen2.5 of this shape with random weights."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    settings = dict(SHAPES[shape])
    heads, key_heads = settings.pop("heads")
    config = Qwen2Config(
        vocab_size=512 if shape == "tiny" else 151936,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        tie_word_embeddings=shape != "7B",
        **settings,
    )
    torch.manual_seed(0)
    with torch.device(device):
        model: Any = Qwen2ForCausalLM(config)  # type: ignore[no-untyped-call]
        return model.to(torch.bfloat16).eval()


def make_batch(groups: int, members: int, prompt: int, sampled: int, vocab_size: int) -> PPOBatch:
    """Return groups of episodes of one turn; the members of a group have the same prompt."""
    generator = torch.Generator().manual_seed(0)
    draw = partial(torch.randint, 0, vocab_size, generator=generator)
    prompts = draw((groups, prompt)).repeat_interleave(members, 0)
    ids = torch.cat([prompts, draw((groups * members, sampled))], 1)
    is_sampled = torch.zeros(ids.shape, dtype=torch.bool)
    is_sampled[:, prompt:] = True
    return PPOBatch(
        ids,
        is_sampled,
        torch.ones(ids.shape, dtype=torch.bool),
        old_log_probs=torch.full(ids.shape, -11.0),
        advantages=torch.randn(len(ids), 1, generator=generator).repeat(1, ids.shape[1]),
    )


def seconds_and_gib(learner: Learner, batch: PPOBatch, repeats: int) -> tuple[float, float]:
    """Return the median time of an update and the peak of the allocated memory."""
    is_gpu = torch.cuda.is_available()
    found = []
    for _ in range(repeats + 1):
        if is_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        started = time.perf_counter()
        learner.update(batch)
        if is_gpu:
            torch.cuda.synchronize()
        found.append(time.perf_counter() - started)
    return median(found[1:]), torch.cuda.max_memory_allocated() / 2**30 if is_gpu else 0.0


def use_kernels(name: str) -> None:
    """Compute norms, rotary embeddings and gated MLPs by our kernels, by Liger's, or by torch.

    `torch-adamw` leaves these, and makes the optimiser's step by torch.
    """
    vars(modules).update(OURS)
    vars(optimizer)["_kernels_for"] = ADAMW
    if name == "torch-adamw":
        vars(optimizer)["_kernels_for"] = lambda shards: None
    if name == "torch":
        vars(modules)["FORWARDS"] = {}
    if name != "liger":
        return
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction  # type: ignore[import-not-found]
    from liger_kernel.ops.rope import LigerRopeFunction  # type: ignore[import-not-found]
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction  # type: ignore[import-not-found]

    def norm(module: Any, hidden: torch.Tensor) -> Any:
        settings = (module.variance_epsilon, 0.0, "llama", False)
        return LigerRMSNormFunction.apply(hidden, module.weight, *settings)

    def mlp(module: Any, x: torch.Tensor) -> Any:
        return module.down_proj(LigerSiLUMulFunction.apply(module.gate_proj(x), module.up_proj(x)))

    def rotate(plain: Any, query: Any, key: Any, cos: Any, sin: Any) -> Any:
        return LigerRopeFunction.apply(query, key, cos, sin)

    vars(modules).update(_fused_norm=norm, _gated_mlp=mlp, _rotate_both=rotate)


def time_update(arguments: argparse.Namespace) -> None:
    """Time an update of groups that share their prompts, and of as many different prompts."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = make_model(arguments.shape, device)
    num_weights = sum(p.numel() for p in model.parameters())
    per_token = 6 * num_weights
    if arguments.lora:
        model, per_token = add_lora(model, rank=arguments.lora), 4 * num_weights
    groups, members = arguments.groups, arguments.members
    prompt, sampled = arguments.prompt, arguments.sampled
    if members == 1:
        works = {"episode": (groups, 1)}
    elif arguments.offload:
        works = {"shared": (groups, members)}
    else:
        works = {"shared": (groups, members), "each": (groups * members, 1)}
        if arguments.lora:
            works["shared, LoRA by peft"] = (groups, members)
        if arguments.kernels:
            works = {f"shared, {name}": (groups, members) for name in arguments.kernels}
    seconds = {}
    options = LearnerOptions(learning_rate=1e-6, offload_optimizer=arguments.offload)
    for name, (num_prompts, num_each) in works.items():
        batch = make_batch(num_prompts, num_each, prompt, sampled, model.config.vocab_size)
        num_tokens = num_prompts * (prompt + num_each * sampled)
        if arguments.kernels:
            use_kernels(name.removeprefix("shared, "))
        learner = Learner(PolicyValueModel(model, None), options)
        learner.model.trunk.merges_adapters = name != "shared, LoRA by peft"
        seconds[name], gib = seconds_and_gib(learner, batch, arguments.repeats)
        mfu = per_token * num_tokens / seconds[name] / PEAK_FLOPS
        print(
            f"update, {arguments.shape}{f' LoRA {arguments.lora}' if arguments.lora else ''}"
            f"{', offloaded' if arguments.offload else ''}, "
            f"{groups} x {members} x ({prompt} + {sampled}), prompt {name}: {seconds[name]:.3f} s, "
            f"{num_tokens:,} tokens, MFU {mfu:.0%}, peak {gib:.1f} GiB",
            flush=True,
        )
        if arguments.record:
            lora = ("-lora" if arguments.lora else "") + ("-offload" if arguments.offload else "")
            figures = {"s": seconds[name], "GiB": gib, "MFU": mfu}
            length = "" if members > 1 else f" of {num_tokens:,}"
            record(f"gpu/update/{arguments.shape}{lora}{length}/{name}", figures, device)
        del learner
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
    if "each" in seconds:
        print(f"{seconds['each'] / seconds['shared']:.2f} times as fast as with prompt each")


def time_sampling(arguments: argparse.Namespace) -> None:
    """Time the local engine with all weights and with adapters, or another engine."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rank, works = arguments.lora, [arguments]
    ways = {NAMES[arguments.backend]: 0}
    if rank:
        ways = {"all weights": 0, "LoRA, merged": rank}
    if arguments.all:
        works = [argparse.Namespace(**(vars(arguments) | changes)) for changes in WORKS]
    seconds = {}
    for way, own_rank in ways.items():
        engine, vocab_size, starting = make_engine(arguments, own_rank, device)
        with engine:
            numbers = count()
            for work in works:
                # The first rounds capture graphs of the sizes that they meet.
                rounds = islice(numbers, 2 + work.repeats)
                found = [timed_sampling(engine, vocab_size, i, work) for i in rounds]
                seconds[way] = median(found[2:])
                num_tokens = work.groups * work.members * work.turns * work.sampled
                figures = {"tokens/s": num_tokens / seconds[way], "start s": starting}
                if arguments.backend == "local":
                    started = time.perf_counter()
                    engine.update_weights(None)
                    figures["publish s"] = time.perf_counter() - started
                report(work, way, figures, device)
        del engine
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
    if rank:
        extra = seconds["LoRA, merged"] / seconds["all weights"] - 1
        print(f"merged adapters take {extra:+.0%} time, bar +5%")


def report(work: argparse.Namespace, way: str, figures: dict[str, float], device: str) -> None:
    """Print the figures of a work, and record them if that was asked for."""
    name = f"{work.shape}, {work.groups * work.members} x ({work.prompt} + {work.sampled})"
    if work.turns > 1:
        name += f", {work.turns} turns"
    speed, *others = figures.items()
    described = ", ".join(f"{what} {value:.3g}" for what, value in others)
    print(f"sampling, {name}, {way}: {speed[1]:,.0f} {speed[0]}, {described}", flush=True)
    if work.record:
        kind = "lora_sampling" if work.lora else "sampling"
        record(f"gpu/{kind}/{name}/{way}", figures, device)


def make_engine(arguments: argparse.Namespace, rank: int, device: str) -> tuple[Any, int, float]:
    """Return an engine with random weights, the size of its vocabulary, and its starting time."""
    if arguments.backend == "local":
        model = make_model(arguments.shape, device)
        model = add_lora(model, rank=rank) if rank else model
        started = time.perf_counter()
        local = LocalEngine(model, deterministic=False)
        return local, model.config.vocab_size, time.perf_counter() - started
    tokenizer = load_tokenizer("tiny")
    with tempfile.TemporaryDirectory() as folder:
        vocab_size = saved(arguments.shape, folder, tokenizer, device).config.vocab_size
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
        options = dict(option.split("=", 1) for option in arguments.options)
        started = time.perf_counter()
        engine = create_inference_engine(folder, arguments.backend, options, tokenizer=tokenizer)
        return engine, vocab_size, time.perf_counter() - started


def saved(shape: str, folder: str, tokenizer: Any, device: str) -> Any:
    """Return a model, saved in a folder for an engine."""
    model = make_model(shape, device)
    if device == "cpu":
        model = model.float()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


def timed_sampling(
    engine: Any, vocab_size: int, number: int, arguments: argparse.Namespace
) -> float:
    """Return the seconds of all conversations of a round.

    Prompts differ in their last token; in another round in all, so that no cache has them.
    """
    prompts = make_batch(arguments.groups, arguments.members, arguments.prompt, 1, vocab_size)
    observed = [index % vocab_size for index in range(arguments.observed)]

    async def converse(row: int, ids: list[int]) -> None:
        session = (number, row)
        for _ in range(arguments.turns):
            request = GenerationRequest(ids, arguments.sampled, seed=row, session=session)
            ids = [*ids, *(await engine.sample(request)).ids, *observed]
        engine.end_session(session)

    async def converse_all() -> None:
        rows = ((prompts.input_ids + number) % vocab_size).tolist()
        await asyncio.gather(*(converse(row, ids) for row, ids in enumerate(rows)))

    started = time.perf_counter()
    asyncio.run(converse_all())
    return time.perf_counter() - started


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("options", nargs="*", metavar="NAME=VALUE", help="of another engine")
    parser.add_argument("--backend", choices=NAMES, default="local")
    parser.add_argument("--shape", choices=SHAPES, default="1.5B")
    parser.add_argument("--lora", type=int, default=0, metavar="RANK")
    parser.add_argument("--offload", action="store_true", help="the optimiser on the CPU")
    parser.add_argument("--sample", action="store_true", help="time sampling, not the update")
    parser.add_argument("--all", action="store_true", help="sample 64, 256 and six turns")
    parser.add_argument("--kernels", nargs="+", choices=("ours", "liger", "torch", "torch-adamw"))
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--sampled", type=int, default=256)
    parser.add_argument("--turns", type=int, default=1, help="of a sampled conversation")
    parser.add_argument("--observed", type=int, default=256, help="tokens between two turns")
    parser.add_argument("--repeats", type=int, default=4)
    add_record_option(parser)
    arguments = parser.parse_intermixed_args()
    if arguments.backend != "local" and (arguments.lora or not arguments.sample):
        parser.error("--backend is for --sample, without --lora")
    (time_sampling if arguments.sample else time_update)(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
