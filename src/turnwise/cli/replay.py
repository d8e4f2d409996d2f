"""`turnwise train --replay RUN`: train again on the recorded episodes of a run."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from turnwise.cli.common import legible, make_console, say
from turnwise.errors import ConfigError, MissingExtraError, TurnwiseError

if TYPE_CHECKING:
    from turnwise.config import ConfigStore

INTERRUPTED = 130


def replayed_run(name: str, file: Path | None, others: dict[str, bool]) -> Path:
    """Return the run to replay; raise for what cannot be combined with a replay."""
    from turnwise.cli.run_paths import require_run, run_of

    given = [option for option, is_given in others.items() if is_given]
    if file is not None:
        given.insert(0, f"the configuration {file}")
    if given:
        raise ConfigError(
            f"--replay takes the settings of {name}, and got {' and '.join(given)}. Leave that "
            "out; single settings may be overridden: section.name=value."
        )
    return run_of(require_run(name))


def free_name(run: Path, parent: Path) -> str:
    """Return the name of the folder of a replay: `mine-replay`, `mine-replay-2` ..."""
    stem = f"{run.resolve().name}-replay"
    names = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
    return next(name for name in names if not (parent / name).exists())


def replay(run: Path, config: ConfigStore, lines: bool, as_json: bool) -> None:
    """Replay a run, and print how it compares; exit with 1 if it diverges."""
    from turnwise.progress import make_reporter
    from turnwise.trainer.replay import replay_run

    try:
        with make_reporter(plain=lines, as_json=as_json) as reporter:
            outcome = replay_run(run, config, reporter)
    except KeyboardInterrupt:
        say("interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except (ConfigError, MissingExtraError):
        raise
    except TurnwiseError as error:
        say(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    text = f"\n{outcome}\nIts folder is {legible(str(outcome.folder))}"
    make_console(stderr=as_json).print(text, soft_wrap=True)
