"""`turnwise train`: train a model, stop it, resume it; or replay a run, or estimate one."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import typer

from turnwise.cli import options as opt
from turnwise.cli.common import parameter_overrides, print_file, say, working
from turnwise.cli.run_paths import refuse_missing_run, require_run
from turnwise.cli.settings import check_code, find_code, name_code, split_arguments
from turnwise.config import ConfigStore
from turnwise.errors import ConfigError, MissingExtraError, TurnwiseError
from turnwise.progress import make_reporter
from turnwise.progress.lines import brief
from turnwise.runs.checkpoints import CheckpointStore
from turnwise.runs.headline import headline
from turnwise.runs.places import base_folders
from turnwise.runs.run_folder import Resume, RunFolder, run_containing
from turnwise.user_code import is_in_run, remember_use, server_use, settings_from
from turnwise.yaml_files import read_yaml

if TYPE_CHECKING:
    from turnwise.trainer.trainer import Trainer

DEMO = Path(__file__).with_name("demo.yaml")
_ABOUT_THE_DEMO = """\
A model of a million random weights learns to find a number from {low} to {high}
in {max_steps} guesses. It first imitates random play, to learn the format of a guess;
the rest it learns from reward alone: a guess earns what it rules out, the right one 1 more.
This takes about two minutes on two cores.
Ctrl-C saves a checkpoint and exits; the same command resumes the run.
"""
_SETTING = re.compile(r"[+~]{0,2}(\w+)[\w.@-]*=")
Engine = StrEnum("Engine", ["LOCAL", "RAY", "VERL"])


def train(
    arguments: Annotated[
        list[str] | None,
        opt.argument(
            "[CONFIG] [ENV] [SECTION.NAME=VALUE]...",
            "A YAML file or a run's folder, an environment (file.py:ClassName), and settings.",
        ),
    ] = None,
    param: opt.Parameters = None,
    config_path: opt.ConfigPath = None,
    config_name: opt.ConfigName = None,
    name: Annotated[str | None, opt.option("Name of the run's folder.", "NAME")] = None,
    output: Annotated[str | None, opt.option("Parent folder of the runs.", "DIR")] = None,
    resume: Annotated[bool, opt.flag("--resume", "Resume a run; fail if there is none.")] = False,
    fresh: Annotated[bool, opt.flag("--fresh", "Start a new run, never resume one.")] = False,
    replayed: Annotated[
        str | None,
        opt.option("Train again on a run's recorded episodes, and compare.", "RUN", "--replay"),
    ] = None,
    estimate: Annotated[bool, opt.flag("--estimate", "Estimate the run from two steps.")] = False,
    engine: Annotated[
        Engine | None,
        opt.option("In this process, on a Ray cluster, or with VERL.", default="by ray.use_ray"),
    ] = None,
    dry: Annotated[
        bool,
        opt.flag("--dry-run", "Print the resolved settings (VERL's with --engine verl) and exit."),
    ] = False,
    trust_remote_code: opt.TrustRemoteCode = False,
    lines: Annotated[bool, opt.flag("--lines", "A line per step, even on a terminal.")] = False,
    as_json: opt.AsJson = False,
) -> None:
    """Train a model in an environment; without arguments, run a demo that learns in minutes.

    Ctrl-C saves a checkpoint and exits; the same command resumes the run.

    [bold]Examples[/bold]

    turnwise train
    turnwise train my_env.py:MyEnvironment -p size=5
    turnwise train my.yaml training.learning_rate=3e-5 --name second
    turnwise train my.yaml --estimate
    turnwise train runs/mine --resume
    turnwise train my.yaml --json > metrics.jsonl
    turnwise train --replay runs/mine
    turnwise train my.yaml --engine verl trainer.nnodes=2 --dry-run
    """
    if resume and fresh:
        raise ConfigError("--resume and --fresh contradict each other. Use one of them.")
    is_verl = engine is Engine.VERL
    if is_verl and (estimate or as_json):
        raise ConfigError("--estimate and --json are not supported with --engine verl.")
    words, verl_words = arguments or [], list[str]()
    if is_verl:  # settings of sections that turnwise does not have are VERL's
        ours = {section.name for section in dataclasses.fields(ConfigStore)}
        verl_words = [word for word in words if (m := _SETTING.match(word)) and m[1] not in ours]
        words = [word for word in words if word not in verl_words]
    file, overrides = split_arguments(words, config_path, config_name)
    overrides += parameter_overrides(param)
    if replayed is not None:
        if file is not None or resume or fresh or estimate or dry or engine is not None:
            raise ConfigError(
                f"--replay takes the settings of {replayed}: no configuration {file or 'file'}, "
                "--resume, --fresh, --estimate, --dry-run or --engine, only section.name=value."
            )
        file = run_containing(require_run(replayed))
    typed: list[str] = []
    for word in overrides:  # the user typed these, so they are trusted
        setting, _, value = word.partition("=")
        typed.append(setting.strip().lstrip("+"))
        name_code(value)
        if typed[-1] == "inference.url":
            remember_use(server_use(value))
    run = source = file if file is not None and file.is_dir() else None
    if file is not None and run is None and is_in_run(file.absolute()):
        source = file.parent  # the run folder that the settings are from
    with settings_from(source, is_trusted=trust_remote_code):
        config = _config(file, overrides)
        if engine in (Engine.LOCAL, Engine.RAY):
            config.ray.use_ray = engine is Engine.RAY
        if output is not None:
            config.checkpoint.output_dir = output
        if replayed is not None and name is None:
            parent = Path(config.checkpoint.output_dir).expanduser()
            stem = f"{config.checkpoint.run_name}-replay"
            names = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
            name = next(name for name in names if not (parent / name).exists())
        if name is not None:
            config.checkpoint.run_name = name
        if dry and not is_verl and source is not None:
            print_file(config.to_yaml())  # read only: nothing that the run names is imported
            return
        folders = base_folders(run) if run is not None else [Path(), file.parent] if file else []
        find_code(config, folders, run=run, typed=typed)
        check_code(config)  # so that errors are reported first
        mode: Resume = "always" if resume else "never" if fresh else "auto"
        if is_verl:
            _train_with_verl(config, mode, verl_words, dry)
        elif dry:
            with working("checking the settings"):  # it imports torch
                from turnwise.algo.choose import Algorithm
                from turnwise.runs.sinks import check_sinks

                Algorithm.from_settings(config.training)
                check_sinks(config.logging.sinks, config.logging.wandb)
            print_file(config.to_yaml())
        elif estimate:
            from turnwise.cli.estimate import estimate_run

            estimate_run(config, as_json)
        elif replayed is not None and run is not None:
            _replay(run, config, lines, as_json)
        else:
            _train(config, mode, lines, as_json, is_demo=not (file or overrides or resume))


def _config(file: Path | None, overrides: Sequence[str]) -> ConfigStore:
    """Return the settings of a file, of a run, or of the demo, with the overrides."""
    run = None
    if file is not None:
        refuse_missing_run(file)
        if file.is_dir():
            run, file = file, file / "config.yaml"
            if not file.is_file():
                raise ConfigError(f"{run} is not a run: it has no config.yaml")
    named = ("environment.name=", "environment=", "agent=", "dataset=", "dataset.path=")
    is_named = any(word.lstrip("+").startswith(named) for word in overrides)
    if file is None and not is_named:
        file = DEMO  # its settings are tuned for its environment only
    config = ConfigStore.load(file, overrides)
    tasks = {"environment", "environments", "agent", "dataset"}
    if file is not None and not is_named and not tasks & set(read_yaml(file)):
        raise ConfigError(
            f"{file} names nothing to train on. Write environment: file.py:ClassName (or a name of "
            "`turnwise envs`), agent: file.py:function, or dataset: rows.jsonl"
        )
    if run is not None:
        config.checkpoint.output_dir = str(run.parent)
        config.checkpoint.run_name = run.resolve().name
    return config


@contextlib.contextmanager
def _exit_codes(describe_interrupt: Callable[[], str]) -> Iterator[None]:
    """Print an error of the run and exit with 1; mistakes in the request exit with 2.

    After Ctrl-C print a line; typer exits with 130.
    """
    try:
        yield
    except (ConfigError, MissingExtraError):
        raise
    except TurnwiseError as error:
        say(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        say(f"\n{describe_interrupt()}", err=True)
        raise


def _train(config: ConfigStore, resume: Resume, lines: bool, as_json: bool, is_demo: bool) -> None:
    if is_demo and not as_json:
        game = config.environment
        say(_ABOUT_THE_DEMO.format(**game.params, max_steps=game.max_steps))
    trainer: Trainer | None = None

    def describe_interrupt() -> str:
        run = trainer and trainer.run_folder
        return f"Resume with:  turnwise train {shlex.quote(str(run))}" if run else "interrupted"

    with _exit_codes(describe_interrupt):
        with make_reporter(plain=lines, as_json=as_json) as reporter:
            from turnwise.trainer.trainer import Trainer

            trainer = Trainer(config, reporter=reporter, resume=resume)
            with trainer:
                trainer.fit()
        say(_closing(config, trainer.metrics_history, str(trainer.run_folder)), err=as_json)


def _replay(run: Path, config: ConfigStore, lines: bool, as_json: bool) -> None:
    """Train again on the recorded episodes of a run, and print how it compares."""
    from turnwise.trainer.replay import replay_run

    with _exit_codes(lambda: "interrupted"):
        with make_reporter(plain=lines, as_json=as_json) as reporter:
            outcome = replay_run(run, config, reporter)
        say(f"\n{outcome}\nIts folder is {outcome.folder}", err=as_json)


def _train_with_verl(config: ConfigStore, resume: Resume, words: Sequence[str], dry: bool) -> None:
    """Train with VERL, which prints its own progress; `dry` only prints its settings."""
    from turnwise.scale.verl import CustomRayPPOTrainer

    mode: Resume = "auto" if dry else resume
    trainer = CustomRayPPOTrainer(config, resume=mode, verl_overrides=words)
    if dry:
        print_file(trainer.dry_run())
        return
    interrupted = "interrupted; the same command resumes from VERL's last checkpoint"
    with _exit_codes(lambda: interrupted), trainer:
        rewards = [metrics["reward"] for metrics in trainer.fit()]
    say(
        f"\nreward   {rewards[0]:.3g} at first, {rewards[-1]:.3g} at last\n"
        f"metrics  {trainer.run_folder}/metrics.jsonl\n"
        f"weights  {trainer.save_checkpoint()}, in VERL's own format"
    )


def _closing(config: ConfigStore, history: Sequence[Mapping[str, float]], folder: str) -> str:
    """Return what the run reached, from its first to its last tenth, and commands to try next."""
    lines = [""]
    for name in ("success", "reward"):
        if values := [metrics[name] for metrics in history if name in metrics]:
            tenth = max(len(values) // 10, 1)
            first, last = brief(fmean(values[:tenth])), brief(fmean(values[-tenth:]))
            steps = "training step" if tenth == 1 else f"{tenth:,} training steps"
            many = "" if tenth == 1 else f" {tenth:,}"
            lines.append(f"{name:<8} {first} in the first {steps}, {last} in the last{many}")
    files = RunFolder(Path(folder))
    if (main := headline(history, files.evaluated_on)) is not None:
        lines.append(str(main))
    if (best := CheckpointStore(files.checkpoints).best) is not None:
        lines.append(f"checkpoint of {best}")
    run = shlex.quote(folder)
    longer = "num_epochs" if config.training.max_steps is None else "max_steps"
    more = f"training.{longer}={2 * getattr(config.training, longer)}"
    commands = {f"turnwise view {run}": "read its conversations, token by token"}
    commands[f"turnwise eval {run}"] = "evaluate it on held-out episodes"
    if config.agent is None:
        part = next((f" --part {shlex.quote(name)}" for name in config.parts() if name), "")
        commands[f"turnwise play --player {run}{part}"] = "watch it play"
        commands[f"turnwise play {run}{part}"] = "try it yourself"
    else:
        commands[f"turnwise serve {run}"] = "serve it to your agent, outside of training"
    commands[f"turnwise train {run} {more}"] = "train on"
    width = max(map(len, commands))
    lines += ["", "Next:", *(f"  {words:<{width}}  {about}" for words, about in commands.items())]
    return "\n".join(lines)
