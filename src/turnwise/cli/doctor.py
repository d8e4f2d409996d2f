"""`turnwise doctor`: checks this machine, or diagnoses a run."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnwise.cli import options as opt
from turnwise.cli.common import legible, make_console, print_json
from turnwise.cli.run_paths import find_run, metrics_file, run_of
from turnwise.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from turnwise.cli.machine import Fact
    from turnwise.runs.doctor import Finding
    from turnwise.runs.headline import Headline

_MARKS = {"ok": ("✓", "green"), "absent": ("-", "dim"), "broken": ("✗", "bold red")}


def doctor(
    run: Annotated[
        str | None,
        opt.argument("[RUN]", "Folder of a run or a checkpoint, or its metrics.jsonl."),
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
    if run is None:
        _check_machine(as_json)
    else:
        _diagnose_run(run, as_json)


def _check_machine(as_json: bool) -> None:
    from turnwise.cli.machine import check_machine

    facts = list(check_machine()) if as_json else list(_shown(check_machine()))
    failures = [fact for fact in facts if fact.is_basic and fact.state == "broken"]
    if as_json:
        print_json({"ok": not failures, "facts": [dataclasses.asdict(fact) for fact in facts]})
    elif failures:
        names = ", ".join(fact.name for fact in failures)
        make_console().print(f"\nThis machine cannot train: {names} must be fixed.", style="bold")
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


def _diagnose_run(run: str, as_json: bool) -> None:
    from rich.text import Text

    from turnwise.runs.checkpoints import CheckpointStore
    from turnwise.runs.doctor import diagnose, findings, present, settings_if_readable
    from turnwise.runs.headline import headline
    from turnwise.runs.metrics_log import MetricsLog, numbers_of
    from turnwise.runs.run_folder import RunFolder

    place = find_run(run)
    folder = RunFolder(Path(run).expanduser().parent if place is None else run_of(place))
    # A run that stopped in its first step has no metrics, but a finding.
    now = None if place is None else findings(folder.path)
    steps: list[dict[str, float]] = []
    if not now or folder.metrics_file.is_file():
        file = metrics_file(run)
        steps = [numbers_of(line) for line in MetricsLog(file).read()]
        if not now and not steps:
            raise ConfigError(f"{file} is empty: no step of this run was finished yet")
    over_time = diagnose(steps, settings_if_readable(folder))
    if now is None:  # a copy of metrics.jsonl without its run folder
        now = present(steps)
    main = headline(steps, folder.evaluated_on)
    if as_json:
        found = [{"step": step, **dataclasses.asdict(finding)} for step, finding in over_time]
        facts = {
            "run": run,
            "num_steps": len(steps),
            "last": steps[-1] if steps else {},
            "headline": None if main is None else main.to_dict(),
            "findings": found,
            "now": [dataclasses.asdict(finding) for finding in now],
        }
        print_json(facts)
        return
    console = make_console()
    _show_findings(console, over_time, now, folder.path)
    summary = _summary(steps, main)
    console.print(Text(f"{legible(run)}: {summary}", "bold"))
    if (best := CheckpointStore(folder.checkpoints).best) is not None:
        console.print(f"checkpoint of {best}")
    codes = ", ".join(finding.code for finding in now)
    console.print(f"As of the last step: {codes or 'nothing wrong'}.")
    if now and folder.config_file.is_file():
        console.print(_how_to_resume(str(folder.path), now), soft_wrap=True)


def _show_findings(
    console: Console,
    over_time: Sequence[tuple[int, Finding]],
    now: Sequence[Finding],
    folder: Path,
) -> None:
    lasting = {finding.code: finding for finding in now}
    for step, finding in over_time:
        # A finding that lasts is shown with its present consequences.
        is_last = finding.code not in {later.code for when, later in over_time if when > step}
        last = lasting.get(finding.code) if is_last else None
        _show_finding(console, f"step {step:<6}", finding, last or finding, folder)
    for finding in now:
        if finding.code not in {one.code for _, one in over_time}:
            _show_finding(console, "", finding, finding, folder)
    if over_time or now:
        console.print()


def _show_finding(
    console: Console, when: str, finding: Finding, last: Finding, folder: Path
) -> None:
    """Print a finding as it began, with its present consequences and example."""
    from rich.padding import Padding
    from rich.text import Text

    title = Text.assemble((when, "bold"), (finding.code, "bold yellow"), overflow="fold")
    console.print(title)
    lines = [Text(legible(finding.text))]
    for one in last.consequences:
        lines.append(Text.assemble(("because of this: ", "bold"), f"{one.code}. {one.text}"))
    lines.append(Text.assemble(("fix: ", "bold green"), finding.fix))
    if last.example is not None:
        address = f"#/run/{folder.resolve().name}/episodes/{last.example}"
        place = legible(f"turnwise view {shlex.quote(str(folder))}, {address}")
        lines.append(Text.assemble(("example: ", "bold"), place))
    for line in lines:
        console.print(Padding(line, (0, 0, 0, 2), expand=False))


def _how_to_resume(run: str, present: Sequence[Finding]) -> str:
    """Return how to change settings: some can change in this run, some only in a new one."""
    from turnwise.runs.resume_settings import FIXED

    advised = {name for found in present for name in re.findall(r"\w+\.[a-z_]+", found.fix)}
    only_new = ", ".join(sorted(advised & set(FIXED)))
    command = legible(f"turnwise train {shlex.quote(run)} section.name=value")
    return f"Change settings and resume: {command}" + (
        f" (only in a new run: {only_new})" if only_new else ""
    )


def _summary(steps: Sequence[Mapping[str, Any]], main: Headline | None) -> str:
    """Return the number of steps, the headline and the highest reward of a run."""
    if not steps:
        return "no step was finished"
    rewards = [(metrics["reward"], metrics.get("step")) for metrics in steps if "reward" in metrics]
    from turnwise.progress.run_state import count

    words = [count(len(steps), "step"), *([] if main is None else [str(main)])]
    if rewards:
        most, when = max(rewards)
        words.append(f"highest reward of a training step {most:.3g} (step {when})")
    return "; ".join(words)
