"""Times sampling: the local engine, transformers' `generate`, and vLLM, alternating in one run.

    python bench/decode.py                                   tiny model, CPU, one turn and six
    python bench/decode.py --model smollm2 --batches 8 32    the shape of SmolLM2-135M
    python bench/decode.py --device cuda --model smollm2 --batches 64 256

Weights are random: speed does not depend on them, and no turn ends early. Each engine samples the
same number of tokens at temperature 1. `local` and vLLM return log-probs, `generate` does not.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from results import add_record_option, record
from turnwise.inference import BaseInferenceEngine, GenerationRequest, GenerationResult
from turnwise.inference.local import LocalEngine

SHAPES = {
    "tiny": {
        "vocab_size": 512,
        "hidden_size": 128,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
    "smollm2": {
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "tie_word_embeddings": True,
    },
}
NUM_TURNS, OBSERVATION, ANSWER = 6, 40, 12
BATCH_INVARIANT = "batch-invariant"
"""The label of the local engine in its deterministic mode."""


@dataclass
class Work:
    """The conversations that every engine samples."""

    prompts: list[list[int]]
    num_new: int
    num_turns: int = 1
    observation: int = 0

    @property
    def num_sampled(self) -> int:
        return len(self.prompts) * self.num_turns * self.num_new

    @property
    def mean_length(self) -> float:
        """The mean context length of a sampled token."""
        per_turn = self.num_new + self.observation
        return len(self.prompts[0]) + (self.num_turns - 1) * per_turn / 2 + self.num_new / 2


def make_work(batch: int, length: int, num_new: int, num_turns: int = 1) -> Work:
    rng = random.Random(0)
    prompts = [[rng.randrange(500) for _ in range(length)] for _ in range(batch)]
    return Work(prompts, num_new, num_turns, OBSERVATION if num_turns > 1 else 0)


@cache
def observation(turn: int, row: int, length: int) -> list[int]:
    rng = random.Random(1000 * turn + row)
    return [rng.randrange(500) for _ in range(length)]


def run_engine(engine: BaseInferenceEngine, work: Work) -> list[tuple[list[int], GenerationResult]]:
    """Plays all conversations concurrently; returns the last prompt and result of each."""

    async def converse(row: int, prompt: list[int]) -> tuple[list[int], GenerationResult]:
        ids, result = list(prompt), None
        for turn in range(work.num_turns):
            if result is not None:
                ids += [*result.ids, *observation(turn, row, work.observation)]
            request = GenerationRequest(ids, work.num_new, seed=100 * row + turn, session=row)
            result = await engine.sample(request)
        engine.end_session(row)
        assert result is not None
        return ids, result

    async def all_rows() -> list[tuple[list[int], GenerationResult]]:
        return await asyncio.gather(*(converse(i, p) for i, p in enumerate(work.prompts)))

    return asyncio.run(all_rows())


@torch.no_grad()
def run_generate(model: Any, work: Work) -> None:
    """Samples all rows in lockstep; every turn computes the whole history again."""
    rows = [list(prompt) for prompt in work.prompts]
    for turn in range(work.num_turns):
        if turn:
            rows = [r + observation(turn, i, work.observation) for i, r in enumerate(rows)]
        ids = torch.tensor(rows, device=model.device)
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            top_k=0,
            max_new_tokens=work.num_new,
            min_new_tokens=work.num_new,
            eos_token_id=None,
            pad_token_id=0,
        )
        rows = output.tolist()


@torch.no_grad()
def run_generate_batch(model: Any, work: Work) -> None:
    """Samples with the continuous batching of transformers."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    config = GenerationConfig(  # type: ignore[no-untyped-call]
        max_new_tokens=work.num_new, do_sample=True, eos_token_id=-1, pad_token_id=0
    )
    length = len(work.prompts[0]) + work.num_turns * (work.num_new + work.observation)
    blocks = len(work.prompts) * (length // 32 + 2)
    batching = ContinuousBatchingConfig(num_blocks=blocks, max_batch_tokens=2048)
    rows = [list(prompt) for prompt in work.prompts]
    for turn in range(work.num_turns):
        if turn:
            rows = [r + observation(turn, i, work.observation) for i, r in enumerate(rows)]
        done = model.generate_batch(
            rows, generation_config=config, continuous_batching_config=batching, progress_bar=False
        )
        answers = [output.generated_tokens for output in done.values()]
        rows = [row + answer for row, answer in zip(rows, answers, strict=True)]


def seconds(functions: dict[str, Callable[[], Any]], device: str, repeats: int) -> dict[str, float]:
    """Returns the fastest run of each function, after one for warm-up.

    The runs alternate, so that a slow phase of the machine affects all of them.
    """
    taken: dict[str, list[float]] = {label: [] for label in functions}
    for _ in range(repeats + 1):
        for label, function in functions.items():
            start = time.perf_counter()
            function()
            if device == "cuda":
                torch.cuda.synchronize()
            taken[label].append(time.perf_counter() - start)
    return {label: min(times[1:]) for label, times in taken.items()}


def runs_here(label: str, function: Callable[[], Any]) -> bool:
    """Tries an engine of another library once; prints why if it fails."""
    try:
        function()
    except Exception as error:
        print(f"{label} does not run here: {type(error).__name__}: {error}"[:200])
        return False
    return True


def bandwidth_bound(model: Any, work: Work, device: str) -> float:
    """Returns the tokens/s of a step that only reads weights and cache, at copy bandwidth."""
    block = torch.empty(2**28, dtype=torch.uint8, device=device)
    target = torch.empty_like(block)
    taken = seconds({"copy": lambda: target.copy_(block)}, device, 5)["copy"]
    bandwidth = 2 * block.numel() / taken
    config = model.config
    width = config.hidden_size // config.num_attention_heads * config.num_key_value_heads
    size = model.dtype.itemsize
    weights = sum(p.numel() for p in model.parameters()) * size
    cache = 2 * config.num_hidden_layers * width * size * work.mean_length
    return float(len(work.prompts) * bandwidth / (weights + len(work.prompts) * cache))


@torch.no_grad()
def gap(model: Any, ids: list[int], result: GenerationResult) -> float:
    """Returns the largest difference between the engine's log-probs and a plain forward's."""
    whole = torch.tensor([[*ids, *result.ids]], device=model.device)
    log_probs = torch.log_softmax(model(whole).logits[0, len(ids) - 1 : -1].float(), -1)
    expected = log_probs.gather(1, whole[0, len(ids) :, None]).squeeze(1).cpu()
    return float((expected - torch.tensor(result.log_probs)).abs().max())


def compare(
    model: Any, name: str, work: Work, options: argparse.Namespace, vllm: BaseInferenceEngine | None
) -> None:
    device, repeats = options.device, options.repeats
    engines: dict[str, Callable[[], Any]] = {}
    locals_ = {"local": LocalEngine(model, deterministic=False)}
    if options.deterministic:
        locals_[BATCH_INVARIANT] = LocalEngine(model, deterministic=True)
    for label, engine in locals_.items():
        engines[label] = partial(run_engine, engine, work)
    if not options.only_local:
        engines["generate"] = partial(run_generate, model, work)
    if options.generate_batch:
        theirs = partial(run_generate_batch, model, work)
        if runs_here("generate_batch", theirs):
            engines["generate_batch"] = theirs
    if vllm is not None:
        engines["vllm"] = partial(run_engine, vllm, work)
    taken = seconds(engines, device, repeats)
    speeds = {label: work.num_sampled / time for label, time in taken.items()}
    bound = bandwidth_bound(model, work, device)
    turns = "six turns" if work.num_turns > 1 else "one turn"
    for label, speed in speeds.items():
        ratio = f"{speed / speeds['generate']:6.2f}x" if "generate" in speeds else ""
        text = f"{name:8} {len(work.prompts):5} x {turns:9} {label:22} {speed:10,.0f} tokens/s"
        text += f" {ratio}  {100 * speed / bound:5.1f} % of the memory bandwidth bound"
        if label in locals_:
            distances = [gap(model, *row) for row in run_engine(locals_[label], work)[:8]]
            text += f"  gap {max(distances):.1e}"
        print(text, flush=True)
    for engine in locals_.values():
        engine.close()
    if options.record:
        place = "vllm" if vllm is not None else device
        alone = "" if len(speeds) > len(locals_) else " alone"
        figures = {f"{label} tokens/s": speed for label, speed in speeds.items()}
        if "generate" in speeds:
            figures["speed-up"] = speeds["local"] / speeds["generate"]
            if BATCH_INVARIANT in speeds:
                speed_up = speeds[BATCH_INVARIANT] / speeds["generate"]
                figures[f"{BATCH_INVARIANT} speed-up"] = speed_up
        record(f"decode{alone}/{place}/{name}/{len(work.prompts)}, {turns}", figures, device)


def start_vllm(model: Any) -> BaseInferenceEngine:
    """Starts vLLM on the same weights in this process."""
    from turnwise.inference.vllm import VLLMInferenceEngine

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return VLLMInferenceEngine(folder, max_model_len=1024, enable_prefix_caching=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--model", choices=SHAPES, default="tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 256])
    parser.add_argument("--prompt", type=int, default=128, help="tokens before the first turn")
    parser.add_argument("--new", type=int, default=128, help="tokens sampled in a single turn")
    parser.add_argument("--turns", choices=["one", "many", "both"], default="both")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--only-local", action="store_true")
    parser.add_argument(
        "--deterministic", action="store_true", help="also time the batch-invariant mode"
    )
    parser.add_argument(
        "--generate-batch", action="store_true", help="also time transformers' generate_batch"
    )
    parser.add_argument("--vllm", action="store_true", help="also time vLLM, if it is installed")
    add_record_option(parser)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    shape: dict[str, Any] = {**SHAPES[options.model], "max_position_embeddings": 2048}
    model: Any = LlamaForCausalLM(LlamaConfig(**shape))  # type: ignore[no-untyped-call]
    model.to(options.device, dtype).eval()
    where = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    print(f"{where}, torch {torch.__version__}, {torch.get_num_threads()} threads, {dtype}")
    vllm = start_vllm(model) if options.vllm else None
    for batch in options.batches:
        if options.turns != "many":
            work = make_work(batch, options.prompt, options.new)
            compare(model, options.model, work, options, vllm)
        if options.turns != "one":
            work = make_work(batch, OBSERVATION, ANSWER, NUM_TURNS)
            compare(model, options.model, work, options, vllm)
    if vllm is not None:
        vllm.close()


if __name__ == "__main__":
    main()
