"""Trains with a learner sharded over NCCL, in a group of one, and compares it with a plain one.

    python bench/gpu/nccl_check.py                  Qwen2.5-1.5B, bfloat16, random weights
    python bench/gpu/nccl_check.py --shape tiny     to see that everything runs; any device

The sharded learner loads the model in parts from its files. Both make three updates on the same
batch. It prints the memory and the time of each, and fails if their metrics or weights differ.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
from pathlib import Path

import torch
from real_shapes import SHAPES, make_batch, make_model, seconds_and_gib

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from results import add_record_option, record
from turnwise.learner import Learner, LearnerOptions, PolicyValueModel
from turnwise.learner.sharding import local_shards
from turnwise.models.empty import load_empty_model

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LARGEST = 1e-3
"""How far weights may be apart: a few of AdamW's steps of 1e-5."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, default="1.5B")
    add_record_option(parser)
    arguments = parser.parse_args()
    length = (512, 256) if arguments.shape != "tiny" else (16, 16)
    options = LearnerOptions(learning_rate=1e-5)
    weights, seconds, gib = {}, {}, {}
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group(
            "nccl" if DEVICE == "cuda" else "gloo",
            init_method=f"file://{folder}/store",
            rank=0,
            world_size=1,
        )
        make_model(arguments.shape, DEVICE).save_pretrained(f"{folder}/model")
        for way in ("sharded", "plain"):
            if way == "sharded":
                model = load_empty_model(f"{folder}/model", dtype="bfloat16", device=DEVICE)
            else:
                model = make_model(arguments.shape, DEVICE)
            batch = make_batch(8, 8, *length, model.config.vocab_size)
            context_size = 1 if way == "sharded" else None
            learner = Learner(PolicyValueModel(model, None), options, context_size=context_size)
            seconds[way], gib[way] = seconds_and_gib(learner, batch, 2)
            found = local_shards(dict(learner.model.named_parameters()))
            weights[way] = {name: tensor.detach().cpu() for name, tensor in found.items()}
            print(f"{way}: an update in {seconds[way]:.3f} s, peak {gib[way]:.1f} GiB", flush=True)
            del learner, model, found
            gc.collect()
            if DEVICE == "cuda":
                torch.cuda.empty_cache()
        torch.distributed.destroy_process_group()
    difference = max(
        float((weights["sharded"][name].float() - tensor.float()).abs().max())
        for name, tensor in weights["plain"].items()
    )
    print(f"largest difference of a weight after three updates: {difference:.2g}")
    if arguments.record:
        figures = {f"{way} s": seconds[way] for way in seconds}
        record(f"gpu/nccl/{arguments.shape}", {**figures, "difference": difference}, DEVICE)
    is_fine = difference < LARGEST
    print("passed" if is_fine else "WRONG")
    return int(not is_fine)


if __name__ == "__main__":
    sys.exit(main())
