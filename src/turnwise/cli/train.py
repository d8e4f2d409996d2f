"""`turnwise train`: train a model, stop it, resume it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnwise.cli.common import legible, make_console, parameter_overrides, print_file, say
from turnwise.cli.engines import Engine, split_settings, train_with_verl, verl_trainer
from turnwise.cli.options import ConfigName, ConfigPath, Parameters, TrustRemoteCode, argument
from turnwise.errors import ConfigError, MissingExtraError, TurnwiseError

if TYPE_CHECKING:
    from turnwise.config import ConfigStore
    from turnwise.runs.run_folder import Resume, RunFolder

DEMO = Path(__file__).with_name("demo.yaml")
INTERRUPTED = 130
_REACHED = ("success", "reward")


def train(
    arguments: Annotated[
        list[str] | None,
        argument(
            "[CONFIG] [ENV] [SECTION.NAME=VALUE]...",
            "A YAML file or the folder of a run, an environment such as file.py:ClassName, and "
            "settings that override the file's.",
        ),
    ] = None,
    param: Parameters = None,
    config_path: ConfigPath = None,
    config_name: ConfigName = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Name of the run's folder.")
    ] = None,
    output: Annotated[
        str | None, typer.Option(metavar="DIR", help="Parent folder of the runs.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume a run; fail if there is none.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start a new run, even if one could be resumed.")
    ] = False,
    replayed: Annotated[
        str | None,
        typer.Option(
            "--replay",
            metavar="RUN",
            help="Train again on the recorded episodes of a run, and compare with its metrics.",
        ),
    ] = None,
    estimate: Annotated[
        bool,
        typer.Option("--estimate", help="Measure two steps and estimate the whole run."),
    ] = False,
    engine: Annotated[
        Engine | None,
        typer.Option(
            help="Train in this process, on a Ray cluster, or with VERL.",
            show_default="local, or ray with ray.use_ray",
        ),
    ] = None,
    dry: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print the resolved settings (VERL's with --engine verl) and exit."
        ),
    ] = False,
    trust_remote_code: TrustRemoteCode = False,
    lines: Annotated[
        bool, typer.Option("--lines", help="Print a line per step, even on a terminal.")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print each step's metrics, or the estimate, as JSON."),
    ] = False,
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
    if engine is Engine.VERL and (estimate or as_json):
        raise ConfigError("--estimate and --json are not supported with --engine verl.")
    from turnwise.cli.settings import name_code, split_arguments
    from turnwise.user_code import remember_use, server_use, settings_from

    words, verl_words = split_settings(arguments or [], engine)
    file, overrides = split_arguments(words, config_path, config_name)
    overrides += parameter_overrides(param)
    if replayed is not None:
        from turnwise.cli.replay import replayed_run

        others = {"--resume": resume, "--fresh": fresh, "--estimate": estimate, "--dry-run": dry}
        others["--engine"] = engine is not None
        file = replayed_run(replayed, file, others)
    for word in overrides:  # the user typed these, so they are trusted
        setting, _, value = word.partition("=")
        name_code(value)
        if setting.lstrip("+") == "inference.url":
            remember_use(server_use(value))
    run = _run_of(file)
    with settings_from(run, is_trusted=trust_remote_code):
        config = _config(file, overrides)
        if engine in (Engine.LOCAL, Engine.RAY):
            config.ray.use_ray = engine is Engine.RAY
        if output is not None:
            config.checkpoint.output_dir = output
        if replayed is not None and file is not None:
            from turnwise.cli.replay import free_name, replay

            place = Path(config.checkpoint.output_dir).expanduser()
            config.checkpoint.run_name = name or free_name(file, place)
            _find_code(config, file, overrides)
            replay(file, config, lines, as_json)
            return
        if name is not None:
            config.checkpoint.run_name = name
        if dry and engine is not Engine.VERL and run is not None:
            print_file(config.to_yaml())  # read only: nothing that the run names is imported
            return
        _find_code(config, file, overrides)
        if dry:
            is_verl = engine is Engine.VERL
            resolved = verl_trainer(config, "auto", verl_words).dry_run() if is_verl else None
            print_file(resolved or config.to_yaml())
            return
        if estimate:
            from turnwise.cli.estimate import estimate_run

            estimate_run(config, make_console(), as_json)
            return
        mode: Resume = "always" if resume else "never" if fresh else "auto"
        if engine is Engine.VERL:
            train_with_verl(config, mode, verl_words, make_console())
            return
        is_demo = file is None and not overrides
        if is_demo and not as_json:
            make_console().print(_about_the_demo(config))
        given = {"config-path": config_path, "config-name": config_name, "name": name}
        given |= {"output": output, "engine": engine}
        options = [part for key, value in given.items() if value for part in (f"--{key}", value)]
        options += [part for value in param or [] for part in ("-p", value)]
        again = legible(shlex.join(["turnwise", "train", *words, *options]))
        _train(config, mode, lines, as_json, again, is_demo)


def _run_of(file: Path | None) -> Path | None:
    """Return the run folder that the settings are from, if any."""
    from turnwise.user_code import is_in_run

    if file is None or file.is_dir():
        return file
    return file.parent if is_in_run(file.absolute()) else None


def _config(file: Path | None, overrides: Sequence[str]) -> ConfigStore:
    """Return the settings of a file, of a run, or of the demo, with the overrides."""
    from turnwise.config import ConfigStore
    from turnwise.yaml_files import read_yaml

    run = file if file is not None and file.is_dir() else None
    if run is not None:
        file = run / "config.yaml"
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


def _find_code(config: ConfigStore, file: Path | None, overrides: Sequence[str]) -> None:
    """Import the code that the settings name, so that errors are reported first."""
    from turnwise.cli.settings import check_code, find_code
    from turnwise.runs.places import places_of

    run = file if file is not None and file.is_dir() else None
    folders = places_of(run) if run is not None else [Path(), file.parent] if file else []
    typed = [word.partition("=")[0].strip().lstrip("+") for word in overrides]
    find_code(config, folders, run=run, typed=typed)
    check_code(config)


def _train(
    config: ConfigStore, resume: Resume, lines: bool, as_json: bool, again: str, is_demo: bool
) -> None:
    from turnwise.progress import make_reporter

    console = make_console(stderr=as_json)
    with make_reporter(plain=lines, as_json=as_json) as reporter:
        from turnwise.trainer.trainer import Trainer

        trainer = Trainer(config, reporter=reporter, resume=resume)
        try:
            with trainer:
                trainer.fit()
        except KeyboardInterrupt:
            is_saved = trainer.run_folder is not None
            outcome = INTERRUPTED
        except (ConfigError, MissingExtraError):
            raise
        except TurnwiseError as error:
            say(f"error: {error}", err=True)
            raise typer.Exit(1) from None
        else:
            outcome = 0
    if outcome == INTERRUPTED:
        console.print(f"\nResume with:  {again}" if is_saved else "interrupted", soft_wrap=True)
        raise typer.Exit(INTERRUPTED)
    closing = _closing(config, trainer.metrics_history, str(trainer.run_folder))
    if is_demo:
        closing = f"\n{_learned(config, trainer.metrics_history)}\n{closing}"
    console.print(closing, soft_wrap=True)


def _about_the_demo(config: ConfigStore) -> str:
    game = config.environment
    return (
        f"A model of a million random weights learns to find a number from {game.params['low']} "
        f"to {game.params['high']}\nin {game.max_steps} guesses. It first imitates random play, "
        "to learn the format of a guess;\nthe rest it learns from reward alone: a guess earns what "
        "it rules out, the right one 1 more.\nThis takes about two minutes on two cores.\n"
        "Ctrl-C saves a checkpoint and exits; the same command resumes the run.\n"
    )


def _learned(config: ConfigStore, history: Sequence[Mapping[str, float]]) -> str:
    """Return what the demo learned: its success before and after, and the expert's."""
    from turnwise.env import environment_factory, expert_player, play_episode
    from turnwise.trainer.evaluation import held_out_tasks

    make = environment_factory(config.environment.name, config.environment)
    tasks = held_out_tasks(max(config.training.eval_episodes, 1), config.training.seed)
    expert = [play_episode(make(), expert_player, task.seed).success for task in tasks]
    evaluated = [m["eval/greedy/success"] for m in history if "eval/greedy/success" in m]
    after = evaluated[-1] if evaluated else history[-1]["success"]
    return (
        f"It found {history[0]['success']:.0%} of the numbers when it began to learn from reward, "
        f"and finds {after:.0%} now;\nthe expert, who halves the range, finds "
        f"{sum(expert) / len(expert):.0%}."
    )


def _closing(config: ConfigStore, history: Sequence[Mapping[str, float]], folder: str) -> str:
    """Return the results of a run, and commands to try next."""
    from turnwise.runs.run_folder import RunFolder

    run = shlex.quote(legible(folder))
    of_parts = [f" --part {shlex.quote(name)}" if name else "" for name in config.parts()]
    commands = {f"turnwise view {run}": "read its conversations, token by token"}
    if config.agent is None:
        commands |= {
            f"turnwise eval {run}": "evaluate it, next to the expert and a random player",
            f"turnwise play --player {run}{of_parts[0]}": "watch it play",
            **{f"turnwise play {run}{part}": "try it yourself" for part in of_parts},
        }
    else:
        commands |= {
            f"turnwise eval {run}": "evaluate it on held-out tasks",
            f"turnwise serve {run}": "serve it to your agent, outside of training",
        }
    training = config.training
    longer = f"training.num_epochs={2 * training.num_epochs}"
    if training.max_steps is not None:
        longer = f"training.max_steps={2 * training.max_steps}"
    commands |= {f"turnwise train {run} {longer}": "train on"}
    width = max(len(command) for command in commands)
    steps = [f"  {command:<{width}}  {what}" for command, what in commands.items()]
    parts = [part for part in config.parts() if part]
    reached = _reached(history, parts, RunFolder(Path(folder)))
    return "\n".join(["", *reached, "", "Next:", *steps])


def _reached(
    history: Sequence[Mapping[str, float]], parts: Sequence[str], folder: RunFolder
) -> list[str]:
    """Return the means of the first and the last tenth of the run, headline and best checkpoint.

    For a mix, the whole comes first, then each environment.
    """
    from turnwise.progress.run_state import brief
    from turnwise.runs.checkpoints import CheckpointStore
    from turnwise.runs.headline import headline

    lines = []
    names = [*_REACHED, *(f"{part}/{name}" for part in parts for name in _REACHED)]
    width = max(8, *map(len, names))
    for name in names:
        part, _, kind = name.rpartition("/")
        values = [metrics[name] for metrics in history if name in metrics]
        if not values:
            continue
        tenth = max(len(values) // 10, 1)
        first, last = (sum(part) / tenth for part in (values[:tenth], values[-tenth:]))
        many = f"{tenth:,} training steps" if tenth > 1 else "training step"
        key = f"eval/{part}/greedy/{kind}"
        evaluated = [metrics[key] for metrics in history if key in metrics] if part else []
        last_eval = f", {brief(evaluated[-1])} in its last evaluation" if evaluated else ""
        lines.append(
            f"{name:<{width}} {brief(first)} in the first {many}, {brief(last)} in the last"
            f"{f' {tenth:,}' if tenth > 1 else ''}{last_eval}"
        )
    found = headline(history, folder.evaluated_on)
    lines += [] if found is None else [str(found)]
    best = CheckpointStore(folder.checkpoints).best
    return [*lines, *([] if best is None else [f"checkpoint of {best}"])]
