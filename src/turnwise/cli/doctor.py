"""`turnwise doctor`: checks this machine, or diagnoses a run."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path
from typing import Annotated

import typer

from turnwise.cli import options as opt
from turnwise.cli.common import legible, make_console, print_json
from turnwise.cli.run_paths import find_run, metrics_file, run_containing
from turnwise.errors import ConfigError

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
    from rich.text import Text

    from turnwise.cli.machine import check_machine

    console = make_console(quiet=as_json)
    facts, part = [], None
    for fact in check_machine():  # printed as soon as it is known
        facts.append(fact)
        if fact.part != part:
            part = fact.part
            console.print(Text(f"\n{part}", "bold"))
        mark, style = _MARKS[fact.state]
        name = (f"{fact.name:<15}", "cyan")
        console.print(Text.assemble((f"  {mark} ", style), name, legible(fact.text)))
    failures = [fact.name for fact in facts if fact.is_basic and fact.state == "broken"]
    if as_json:
        print_json({"ok": not failures, "facts": [dataclasses.asdict(fact) for fact in facts]})
    elif failures:
        names = ", ".join(failures)
        console.print(f"\nThis machine cannot train: {names} must be fixed.", style="bold")
    else:
        console.print("\nThis machine can train. Start with: turnwise train", style="bold")
    raise typer.Exit(1 if failures else 0)


def _diagnose_run(run: str, as_json: bool) -> None:
    from rich.padding import Padding
    from rich.text import Text

    from turnwise.progress.lines import count
    from turnwise.runs.checkpoints import CheckpointStore
    from turnwise.runs.doctor import diagnose, findings, present, settings_if_readable
    from turnwise.runs.headline import headline
    from turnwise.runs.metrics_log import MetricsLog, numbers_of
    from turnwise.runs.resume_settings import FIXED
    from turnwise.runs.run_folder import RunFolder

    source = find_run(run)
    folder = RunFolder(Path(run).expanduser().parent if source is None else run_containing(source))
    # A run that stopped in its first step has no metrics, but a finding.
    now = None if source is None else findings(folder.path)
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
        print_json(
            {
                "run": run,
                "num_steps": len(steps),
                "last": steps[-1] if steps else {},
                "headline": None if main is None else main.to_dict(),
                "findings": [
                    {"step": step, **dataclasses.asdict(finding)} for step, finding in over_time
                ],
                "now": [dataclasses.asdict(finding) for finding in now],
            }
        )
        return
    console = make_console()
    lasting = {finding.code: finding for finding in now}
    began = {finding.code: step for step, finding in over_time}  # the last time
    shown = [(f"step {step:<6}", step, finding) for step, finding in over_time]
    shown += [("", 0, finding) for finding in now if finding.code not in began]
    for title, step, finding in shown:
        # One that lasts is shown with its present consequences and example.
        is_last = began.get(finding.code, 0) == step
        latest = lasting.get(finding.code, finding) if is_last else finding
        console.print(
            Text.assemble((title, "bold"), (finding.code, "bold yellow"), overflow="fold")
        )
        lines = [Text(legible(finding.text))]
        for one in latest.consequences:
            lines.append(Text.assemble(("because of this: ", "bold"), f"{one.code}. {one.text}"))
        lines.append(Text.assemble(("fix: ", "bold green"), finding.fix))
        if latest.example is not None:
            address = f"#/run/{folder.path.resolve().name}/episodes/{latest.example}"
            command = legible(f"turnwise view {shlex.quote(str(folder.path))}, {address}")
            lines.append(Text.assemble(("example: ", "bold"), command))
        for line in lines:
            console.print(Padding(line, (0, 0, 0, 2), expand=False))
    if shown:
        console.print()
    words = [count(len(steps), "step") if steps else "no step was finished"]
    if main is not None:
        words.append(str(main))
    if rewards := [(line["reward"], line.get("step")) for line in steps if "reward" in line]:
        most, when = max(rewards)
        words.append(f"highest reward of a training step {most:.3g} (step {when})")
    console.print(Text(f"{legible(run)}: {'; '.join(words)}", "bold"))
    if (best := CheckpointStore(folder.checkpoints).best) is not None:
        console.print(f"checkpoint of {best}")
    codes = ", ".join(finding.code for finding in now)
    console.print(f"As of the last step: {codes or 'nothing wrong'}.")
    if now and folder.config_file.is_file():
        command = legible(f"turnwise train {shlex.quote(str(folder.path))} section.name=value")
        advised = {name for finding in now for name in re.findall(r"\w+\.[a-z_]+", finding.fix)}
        only_new = ", ".join(sorted(advised & set(FIXED)))
        ending = f" (only in a new run: {only_new})" if only_new else ""
        console.print(f"Change settings and resume: {command}{ending}", soft_wrap=True)
