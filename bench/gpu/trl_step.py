"""Times a GRPO step of TRL with vLLM in its process: the work of `engines.py`, on one GPU.

    python bench/gpu/trl_step.py                  Qwen2.5-1.5B, random weights
    python bench/gpu/trl_step.py --shape tiny     to see that everything runs

TRL has its faster settings: no reference model, no gradient checkpointing, bfloat16, and vLLM with
0.3 of the memory. `--micro-batch` episodes are computed at once.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers
import trl  # type: ignore[import-not-found]
from datasets import Dataset  # type: ignore[import-not-found]

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engines import Recital
from real_shapes import SHAPES, saved

from results import add_record_option, record
from turnwise.models import load_tokenizer


class Clock(transformers.TrainerCallback):
    """Times each step from the end of the one before."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._last = 0.0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._last = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        torch.cuda.synchronize()
        now = time.perf_counter()
        self.seconds.append(now - self._last)
        self._last = now


def score(completions: list[Any], **_: Any) -> list[float]:
    return [float(len(completion[-1]["content"]) % 7) for completion in completions]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, default="1.5B")
    parser.add_argument("--micro-batch", type=int, default=8)
    add_record_option(parser)
    arguments = parser.parse_args()
    tokenizer, clock = load_tokenizer("tiny"), Clock()
    prompt = [{"role": "user", "content": Recital().reset()}]
    with tempfile.TemporaryDirectory() as folder:
        saved(arguments.shape, folder, tokenizer, "cuda")
        torch.cuda.empty_cache()
        trainer = trl.GRPOTrainer(
            folder,
            args=trl.GRPOConfig(
                output_dir=f"{folder}/run",
                bf16=True,
                model_init_kwargs={"dtype": "bfloat16"},
                num_generations=8,
                per_device_train_batch_size=arguments.micro_batch,
                gradient_accumulation_steps=64 // arguments.micro_batch,
                max_completion_length=256 if arguments.shape != "tiny" else 8,
                max_steps=5,
                learning_rate=1e-6,
                beta=0.0,
                gradient_checkpointing=False,
                use_vllm=True,
                vllm_mode="colocate",
                vllm_gpu_memory_utilization=0.3,
                vllm_max_model_length=1024,
                logging_steps=1,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
            ),
            processing_class=tokenizer,
            reward_funcs=score,
            train_dataset=Dataset.from_list([{"prompt": prompt}] * 64),
            callbacks=[clock],
        )
        trainer.train()
    seconds, gib = median(clock.seconds[1:]), torch.cuda.max_memory_reserved() / 2**30
    print(f"TRL {trl.__version__}, {arguments.shape}: a step in {seconds:.2f} s, {gib:.0f} GiB")
    if arguments.record:
        record(f"gpu/trl_step/{arguments.shape}", {"s": seconds, "GiB": gib}, "cuda")
    return 0


if __name__ == "__main__":
    sys.exit(main())
