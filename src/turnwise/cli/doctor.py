"""`turnwise doctor`: what works on this machine, or what is wrong with a run."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnwise.cli import completion
from turnwise.cli.common import AsJson, legible, make_console
from turnwise.cli.run_place import metrics_file, run_of
from turnwise.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from turnwise.cli.machine import Fact
    from turnwise.runs.doctor import Finding

_MARKS = {"ok": ("✓", "green"), "absent": ("-", "dim"), "broken": ("✗", "bold red")}


def doctor(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            help="The folder of a run, a checkpoint in it, or its metrics.jsonl.",
            show_default=False,
            autocompletion=completion.runs,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what works on this machine; with a run, what was wrong with it, when, and the cure.

    The exit code is 1 if this machine cannot train at all.

    [bold]Examples[/bold]

    turnwise doctor
    turnwise doctor runs/guess-number
    turnwise doctor runs/guess-number --json | jq .now
    """
    if run is None:
        _look_at_machine(as_json)
    else:
        _look_at_run(run, as_json)


def _look_at_machine(as_json: bool) -> None:
    from turnwise.cli.machine import look_around

    facts = list(look_around()) if as_json else list(_shown(look_around()))
    failures = [fact for fact in facts if fact.is_basic and fact.state == "broken"]
    if as_json:
        rows = [dataclasses.asdict(fact) for fact in facts]
        typer.echo(json.dumps({"ok": not failures, "facts": rows}, indent=1))
    elif failures:
        names = ", ".join(fact.name for fact in failures)
        make_console().print(f"\nThis machine cannot train: {names} must be mended.", style="bold")
    else:
        make_console().print("\nThis machine can train. Start with: turnwise train", style="bold")
    raise typer.Exit(1 if failures else 0)


def _shown(facts: Iterable[Fact]) -> Iterable[Fact]:
    """Print each fact as soon as it is known."""
    from rich.text import Text

    console, part = make_console(), None
    for fact in facts:
        if fact.part != part:
            part = fact.part
            console.print(Text(f"\n{part}", "bold"))
        mark, style = _MARKS[fact.state]
        line = Text.assemble(
            (f"  {mark} ", style), (f"{fact.name:<15}", "cyan"), legible(fact.text)
        )
        console.print(line)
        yield fact


def _look_at_run(run: str, as_json: bool) -> None:
    from turnwise.runs.doctor import Doctor
    from turnwise.runs.metrics_log import MetricsLog, numbers_of

    file = metrics_file(run)
    steps = [numbers_of(line) for line in MetricsLog(file).read()]
    if not steps:
        raise ConfigError(f"{file} is empty: no step of this run was finished yet")
    doctor = Doctor()
    said = [
        (int(metrics.get("step", number)), finding)
        for number, metrics in enumerate(steps, 1)
        for finding in doctor.look(metrics)
    ]
    present = doctor.present()
    if as_json:
        found = [{"step": step, **dataclasses.asdict(finding)} for step, finding in said]
        now = [dataclasses.asdict(finding) for finding in present]
        facts = {"run": run, "num_steps": len(steps), "last": steps[-1]}
        typer.echo(json.dumps({**facts, "findings": found, "now": now}, indent=1))
    else:
        _show_run(make_console(), run, steps, said, present)


def _show_run(
    console: Console,
    run: str,
    steps: Sequence[Mapping[str, Any]],
    said: Sequence[tuple[int, Finding]],
    present: Sequence[Finding],
) -> None:
    from rich.padding import Padding
    from rich.text import Text

    for step, finding in said:
        console.print(
            Text.assemble(
                (f"step {step:<6}", "bold"), (finding.code, "bold yellow"), overflow="fold"
            )
        )
        cure = Text.assemble(("cure: ", "bold green"), finding.cure)
        for text in (Text(finding.text), cure):
            console.print(Padding(text, (0, 0, 0, 2), expand=False))
    if said:
        console.print()
    console.print(Text(f"{legible(run)}: {_summary(steps)}", "bold"))
    codes = ", ".join(finding.code for finding in present)
    console.print(f"As of the last step: {codes or 'nothing wrong'}.")
    folder = run_of(Path(run).expanduser())
    if present and (folder / "config.yaml").is_file():
        console.print(_how_to_resume(str(folder), present), soft_wrap=True)


def _how_to_resume(run: str, present: Sequence[Finding]) -> str:
    """How to follow the advice: some settings can be changed in this run, some in a new one."""
    from turnwise.runs.resume_settings import FIXED

    advised = {name for found in present for name in re.findall(r"\w+\.[a-z_]+", found.cure)}
    only_new = ", ".join(sorted(advised & set(FIXED)))
    command = legible(f"turnwise train {shlex.quote(run)} section.name=value")
    return f"Change settings and resume: {command}" + (
        f" (only in a new run: {only_new})" if only_new else ""
    )


def _summary(steps: Sequence[Mapping[str, Any]]) -> str:
    """How far a run has come, and how well it went."""
    last = steps[-1]
    words = [f"{len(steps)} steps"]
    rewards = [(metrics["reward"], metrics.get("step")) for metrics in steps if "reward" in metrics]
    if rewards:
        best, when = max(rewards)
        words.append(f"reward {rewards[-1][0]:.3g} (best {best:.3g} at step {when})")
    if "success" in last:
        words.append(f"success {last['success']:.0%}")
    evaluated = [m["eval/greedy/success"] for m in steps if "eval/greedy/success" in m]
    if evaluated:
        words.append(f"on held-out seeds {evaluated[-1]:.0%}")
    return ", ".join(words)
