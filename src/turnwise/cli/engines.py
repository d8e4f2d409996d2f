"""`turnwise train --engine`: trains in one process, on Ray, or with VERL's own trainer."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

import typer

from turnwise.cli.common import legible, say
from turnwise.errors import ConfigError, TurnwiseError

if TYPE_CHECKING:
    from rich.console import Console

    from turnwise.config import ConfigStore
    from turnwise.runs.run_folder import Resume
    from turnwise.scale.verl import CustomRayPPOTrainer

_SETTING = re.compile(r"[+~]{0,2}(\w+)(?:@[\w.]*)?[.=]")


class Engine(StrEnum):
    """The engines of `create_trainer`."""

    LOCAL = "local"
    RAY = "ray"
    VERL = "verl"


def split_settings(words: Sequence[str], engine: Engine | None) -> tuple[list[str], list[str]]:
    """Return our arguments and VERL's: settings of sections that turnwise does not have."""
    if engine is not Engine.VERL:
        return list(words), []
    from turnwise.config import ConfigStore

    ours = {section.name for section in dataclasses.fields(ConfigStore)}
    is_verls = {
        word: (found := _SETTING.match(word)) is not None
        and "=" in word
        and found.group(1) not in ours
        for word in words
    }
    return [word for word in words if not is_verls[word]], [w for w in words if is_verls[w]]


def train_with_verl(
    config: ConfigStore, resume: Resume, overrides: Sequence[str], console: Console
) -> None:
    """Train with VERL, which prints its own progress."""
    trainer = verl_trainer(config, resume, overrides)
    try:
        with trainer:
            history = trainer.fit()
    except KeyboardInterrupt:
        console.print("\ninterrupted; the same command resumes from VERL's last checkpoint")
        raise typer.Exit(130) from None
    except ConfigError:
        raise
    except TurnwiseError as error:
        say(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    first, last = history[0], history[-1]
    console.print(
        f"\nreward   {first['reward']:.3g} at first, {last['reward']:.3g} at last\n"
        f"metrics  {legible(str(trainer.run_folder))}/metrics.jsonl\n"
        f"weights  {legible(str(trainer.save_checkpoint()))}, in VERL's own format",
        soft_wrap=True,
    )


def verl_trainer(
    config: ConfigStore, resume: Resume, overrides: Sequence[str]
) -> CustomRayPPOTrainer:
    """Return VERL's trainer for these settings; VERL is imported only here."""
    from turnwise.scale.verl import CustomRayPPOTrainer

    return CustomRayPPOTrainer(config, resume=resume, verl_overrides=overrides)
