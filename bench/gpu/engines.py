"""Times engines inside training: new weights in vLLM and SGLang, and a GRPO step.

    python bench/gpu/engines.py local                      1.5B: a step
    python bench/gpu/engines.py vllm                       7B: new weights; 1.5B: a step
    python bench/gpu/engines.py sglang
    python bench/gpu/engines.py vllm --server              7B: new weights in a server on this GPU
    python bench/gpu/engines.py sglang attention_backend=fa3
                                                           other options of the engine
    python bench/gpu/engines.py vllm --shape tiny          to see that everything runs; any device

Weights are random, in bfloat16. After each update the engine's log-probs are compared with a plain
forward of the new weights. Bars: new weights of 7B in 1 s; the step (8 groups of 8 episodes, 419
tokens of prompt, 256 sampled) in the time that TRL takes with vLLM in its process (`trl_step.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, get_args

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from real_shapes import SHAPES, saved

from results import add_record_option, record
from turnwise import BaseEnvironment, ConfigStore, Trainer, create_inference_engine
from turnwise.errors import EngineError
from turnwise.inference.weights import Transfer
from turnwise.models import load_tokenizer

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SYNC_BAR, STEP_BAR, LARGEST_GAP = 1.0, 3.66, 0.2
SHARE = {"vllm": "gpu_memory_utilization", "sglang": "mem_fraction_static"}
LAUNCH = {
    "vllm": ["-m", "vllm.entrypoints.openai.api_server", "--model"],
    "sglang": ["-m", "sglang.launch_server", "--model-path"],
}


def options_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the engine's options for a GPU that it shares with the learner."""
    asked = dict(option.split("=", 1) for option in arguments.options)
    if DEVICE == "cpu" and arguments.backend == "vllm":
        return {"block_size": 32, "kv_cache_memory_bytes": 2**28, **asked}
    return {SHARE[arguments.backend]: 0.3, **asked} if arguments.backend in SHARE else asked


@contextmanager
def server(arguments: argparse.Namespace, folder: str, tokenizer: Any) -> Iterator[Any]:
    """Start a server on this machine; yield an engine on it."""
    backend = arguments.backend
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [sys.executable, *LAUNCH[backend], folder, "--port", str(port)]
    for name, value in options_of(arguments).items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    if backend == "vllm":
        from turnwise.inference.vllm.receiver import RECEIVER

        command += ["--logprobs-mode", "processed_logprobs", "--worker-extension-cls", RECEIVER]
        command += ["--enforce-eager"] if DEVICE == "cpu" else []
    process = subprocess.Popen(command, env={**os.environ, "VLLM_SERVER_DEV_MODE": "1"})
    options = {"model_path": folder, "transfer": arguments.transfer}
    try:
        while process.poll() is None:
            try:
                engine = create_inference_engine(
                    f"http://127.0.0.1:{port}", backend, options, tokenizer=tokenizer
                )
            except EngineError:
                time.sleep(2.0)
            else:
                with engine:
                    yield engine
                return
        raise SystemExit(f"the server exited with {process.returncode}")
    finally:
        process.terminate()
        process.wait()


@torch.no_grad()
def gap(engine: Any, model: Any) -> float:
    """Return the mean difference between the log-probs of the engine and of a plain forward."""
    ids = torch.arange(100, 164)
    scores = torch.tensor(asyncio.run(engine.score(ids.tolist(), 1)))
    logits = model(ids[None].to(DEVICE)).logits[0, :-1].float().cpu()
    expected = torch.log_softmax(logits, -1).gather(1, ids[1:, None])[:, 0]
    return float((scores - expected).abs().mean())


def time_sync(engine: Any, model: Any, name: str) -> bool:
    """Time updates with changed weights; print the best and the median."""
    seconds = []
    for _ in range(4):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.01)
        start = time.perf_counter()
        engine.update_weights(model.state_dict())
        seconds.append(time.perf_counter() - start)
    difference = gap(engine, model)
    took = median(seconds[1:])
    print(
        f"{name}: new weights in {took:.3f} s (first {seconds[0]:.3f} s), gap {difference:.4f}",
        flush=True,
    )
    RECORDED[f"gpu/sync/{name}"] = {"s": took, "first s": seconds[0]}
    return difference < LARGEST_GAP and (DEVICE == "cpu" or took <= SYNC_BAR)


RECORDED: dict[str, dict[str, float]] = {}


class Recital(BaseEnvironment):
    """One turn after a prompt of some length."""

    prompt_length = 400

    def reset(self) -> str:
        self._done = False
        return "a" * self.prompt_length

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        self._done = True
        return "", float(len(action) % 7), True, {}

    def get_state_description(self) -> str:
        return "a recital"


def time_step(arguments: argparse.Namespace, folder: str, tokenizer: Any) -> bool:
    """Time a GRPO step through the engine, in the process of the trainer."""
    backend, shape = arguments.backend, arguments.shape or "1.5B"
    model = saved(shape, folder, tokenizer, DEVICE)
    sampled = 256 if shape != "tiny" else 8
    config = ConfigStore.load(
        overrides=[
            f"inference.backend={backend}",
            f"inference.max_tokens={sampled}",
            f"model.local_path={folder}",
            f"checkpoint.output_dir={tempfile.mkdtemp()}",
            "training.adv_estimator=grpo",
            "training.batch_size=8",
            "training.group_size=8",
            "training.learning_rate=1e-6",
            "training.max_log_prob_gap=null",
        ]
    )
    config.inference.options = options_of(arguments)
    with Trainer(config, Recital, model=model, tokenizer=tokenizer) as trainer:
        found = []
        for _ in range(5):
            start = time.perf_counter()
            last = trainer.train_step()
            found.append(time.perf_counter() - start)
    seconds = median(found[1:])
    timings = {k: round(v, 3) for k, v in last.items() if k.startswith(("time/", "memory/"))}
    print(f"{backend} {shape}: a step in {seconds:.2f} s; {timings}", flush=True)
    RECORDED[f"gpu/engine_step/{backend}/{shape}"] = {"s": seconds}
    return DEVICE == "cpu" or seconds <= STEP_BAR


def time_syncs(arguments: argparse.Namespace, folder: str, tokenizer: Any) -> bool:
    """Time new weights in an engine of this process, or in a server."""
    backend, shape = arguments.backend, arguments.shape or "7B"
    model = saved(shape, folder, tokenizer, DEVICE)
    if arguments.server:
        with server(arguments, folder, tokenizer) as engine:
            return time_sync(engine, model, f"{backend}/{shape}/server")
    options = options_of(arguments)
    with create_inference_engine(folder, backend, options, tokenizer=tokenizer) as engine:
        return time_sync(engine, model, f"{backend}/{shape}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("backend", choices=("local", *SHARE))
    parser.add_argument("options", nargs="*", metavar="NAME=VALUE", help="of the engine")
    parser.add_argument("--shape", choices=SHAPES, help="of both; default 7B and 1.5B")
    parser.add_argument("--server", action="store_true", help="time new weights in a server")
    parser.add_argument("--transfer", choices=get_args(Transfer), default="auto", help="to it")
    add_record_option(parser)
    arguments = parser.parse_intermixed_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    tokenizer = load_tokenizer("tiny")
    works = [time_syncs] if arguments.backend != "local" else []  # which has the learner's weights
    works += [] if arguments.server else [time_step]
    results = []
    for work in works:
        with tempfile.TemporaryDirectory() as folder:
            results.append(work(arguments, folder, tokenizer))
        for name, figures in RECORDED.items() if arguments.record else ():
            record(name, figures, DEVICE)
    print("passed" if all(results) else "WRONG or too slow")
    return int(not all(results))


if __name__ == "__main__":
    sys.exit(main())
