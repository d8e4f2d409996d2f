"""The components of a run that a command plays with: the run's own, or what the options name.

Environment, reward, tools, parser, system prompt and dataset stand in the run folder by name. What
cannot be imported from there (a class of a notebook) is an error that names the option here that
supplies it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from turnwise.cli import completion
from turnwise.cli.common import environment_config, say
from turnwise.cli.run_place import find_run, run_of
from turnwise.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from turnwise.config import ConfigStore
    from turnwise.models import LoadedModel
    from turnwise.trainer.components import UserComponents
    from turnwise.trainer.rollout import Rows

_OWN = "the run's own"
_PANEL = "Instead of what the run has"
EnvironmentOption = Annotated[
    str | None,
    typer.Option(
        "--env",
        metavar="ENV",
        help="Another environment.",
        show_default=_OWN,
        rich_help_panel=_PANEL,
        autocompletion=completion.environments,
    ),
]
RewardOption = Annotated[
    str | None,
    typer.Option(
        "--reward",
        metavar="FILE.PY:NAME",
        help="Another reward function.",
        show_default=_OWN,
        rich_help_panel=_PANEL,
    ),
]
DatasetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--dataset",
        metavar="FILE",
        help="Other rows to play; may be given many times.",
        show_default=_OWN,
        rich_help_panel=_PANEL,
    ),
]
ToolOption = Annotated[
    list[str] | None,
    typer.Option(
        "--tool",
        metavar="NAME",
        help="Other tools: calculator, python, FILE.PY:NAME; may be given many times.",
        show_default=_OWN,
        rich_help_panel=_PANEL,
    ),
]
ParserOption = Annotated[
    str | None,
    typer.Option(
        "--parser",
        metavar="NAME",
        help="Another parser of tool calls: json, hermes, FILE.PY:NAME ...",
        show_default=_OWN,
        rich_help_panel=_PANEL,
        autocompletion=completion.parsers,
    ),
]
SystemPromptOption = Annotated[
    str | None,
    typer.Option(
        "--system-prompt",
        metavar="TEXT",
        help="Another system prompt.",
        show_default=_OWN,
        rich_help_panel=_PANEL,
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="The model that the run's weights belong to: a name, a folder, a Hugging Face id.",
        show_default=_OWN,
        rich_help_panel=_PANEL,
        autocompletion=completion.runs_and_models,
    ),
]
PartOption = Annotated[
    str | None,
    typer.Option(
        "--part",
        metavar="NAME",
        help="Of a run with a mix of environments, only this one.",
        show_default=False,
    ),
]
CheckpointOption = Annotated[
    str,
    typer.Option("--checkpoint", metavar="WHICH", help="best, last, or the folder of one."),
]


@dataclass(frozen=True)
class Supplied:
    """What the command line names instead of a run's own components; None keeps the run's own."""

    environment: str | None = None
    param: list[str] | None = None
    max_steps: int | None = None
    reward: str | None = None
    dataset: list[str] | None = None
    tools: list[str] | None = None
    parser: str | None = None
    system_prompt: str | None = None
    model: str | None = None
    part: str | None = None

    def allow_code(self, *more: str | None) -> None:
        """Let the code be used that these options, and `more` of them, name: the user typed it."""
        from turnwise.cli.settings import name_code

        named = [self.environment, self.reward, self.parser, *(self.tools or []), *more]
        for target in named:
            if target is not None:
                name_code(target)

    def from_here(self) -> Supplied:
        """Name files by their whole path: what is typed lies here, not where the run began."""
        return dataclasses.replace(
            self,
            environment=_whole(self.environment),
            reward=_whole(self.reward),
            parser=_whole(self.parser),
            dataset=self.dataset and [str(Path(path).absolute()) for path in self.dataset],
            tools=self.tools and [_whole(tool) or tool for tool in self.tools],
        )

    def put_into(self, config: ConfigStore) -> None:
        """Replace what is supplied.

        Another environment comes without the run's other components, since its tasks, tools and
        rewards are others; one that stands for an environment that cannot be restored, with them.
        """
        from turnwise.config import DatasetConfig

        self._choose_part(config)
        is_lost = config.environments is None and config.environment.name.startswith("<")
        if self.environment is not None and is_lost:
            config.environment.name = self.environment
        elif self.environment is not None:
            config.environments = None
            config.environment = environment_config(self.environment, None, None)
            config.dataset, config.eval_dataset = DatasetConfig(), DatasetConfig()
            config.reward, config.tools = None, []
        if self.param or self.max_steps:
            changed = environment_config(config.environment.name, self.param, self.max_steps)
            config.environment.params |= changed.params
            if self.max_steps is not None:
                config.environment.max_steps = self.max_steps
        for item in config.environments or ():  # what is supplied is for all of them
            item.reward = None if self.reward is not None else item.reward
            item.tools = None if self.tools else item.tools
            item.system_prompt = None if self.system_prompt is not None else item.system_prompt
        if self.reward is not None:
            config.reward = self.reward
        if self.dataset:
            config.dataset, config.eval_dataset = (
                DatasetConfig(),
                DatasetConfig(path=self.dataset, columns=config.dataset.columns),
            )
        if self.tools:
            config.tools = list(self.tools)
        if self.parser is not None:
            config.parser = self.parser
        if self.system_prompt is not None:
            config.system_prompt = self.system_prompt

    def _choose_part(self, config: ConfigStore) -> None:
        """Make one environment of a mix the only one, if it is named."""
        parts = config.parts()
        if self.part is not None and (config.environments is None or self.part not in parts):
            known = did_you_mean(self.part, parts) if config.environments else "It has no mix."
            raise ConfigError(f"--part got {self.part!r}, which the run does not have. {known}")
        if self.part is not None:
            for field in dataclasses.fields(config):
                setattr(config, field.name, getattr(parts[self.part], field.name))
        elif config.environments is not None and self.environment is None:
            options: dict[str, Any] = {"--dataset": self.dataset, "--param": self.param}
            options["--max-steps"] = self.max_steps
            for option in (name for name, value in options.items() if value):
                raise ConfigError(
                    f"{option} is for one environment, and the run has a mix: {', '.join(parts)}. "
                    f"Name one of them: --part {next(iter(parts))}"
                )


def _whole(target: str | None) -> str | None:
    """`file.py:Name` with the whole path of a file that is here; anything else as it is."""
    place, colon, name = (target or "").rpartition(":")
    is_here = colon and place.endswith(".py") and Path(place).is_file()
    return f"{Path(place).absolute()}:{name}" if is_here else target


def source_of(name: str | None, checkpoint: str = "last") -> Path | None:
    """Return the run or the checkpoint whose settings are taken; None for a model."""
    if checkpoint not in ("best", "last"):
        found = find_run(checkpoint)
        if found is None:
            raise ConfigError(
                f"--checkpoint got {checkpoint!r}, expected best, last, or the folder of a "
                "checkpoint, for example runs/mine/checkpoints/step-00000010"
            )
        return found
    return None if name is None else find_run(name)


def settings_of(source: Path) -> ConfigStore:
    """Return the settings of a run or of a checkpoint, without its model."""
    from turnwise.config import ConfigStore
    from turnwise.runs.older_runs import is_older
    from turnwise.runs.places import find_models, places_of
    from turnwise.runs.run_folder import RunFolder

    file = source / "config.yaml"
    if not file.is_file():
        raise ConfigError(
            f"{source} has no config.yaml: the run ended before it wrote its settings"
        )
    config = ConfigStore.load(file)
    find_models(config, places_of(run_of(source)))
    folder = RunFolder(run_of(source))
    if is_older(folder.facts) or folder.evaluated_on == "training rows":
        config.training.eval_fraction = None  # it has trained on all rows
    return config


def restore(
    config: ConfigStore,
    source: Path | None,
    supplied: Supplied,
    *,
    takes_mix: bool = False,
    is_checked: bool = True,
) -> None:
    """Put in what is supplied, find the code that is named, and import it.

    A mix of environments is refused unless the command `takes_mix`. Without `is_checked` the code
    is only found: the command reports by itself what fails.
    """
    from turnwise.cli.settings import check_code, find_code, run_folders

    if source is not None:
        _look_at_older(config, source)
        _name_prompts(config)
    (supplied if source is None else supplied.from_here()).put_into(config)
    if config.environments is not None and not takes_mix:
        names = ", ".join(config.parts())
        raise ConfigError(
            f"{source} is a run with a mix of environments, and this command plays in one of them: "
            f"{names}. Name it: --part {next(iter(config.parts()))}"
        )
    # A run lies somewhere below the folder in which its environment was found.
    run = None if source is None else run_of(source)
    find_code(config, [] if run is None else run_folders(run), run=run)
    if not is_checked:
        return
    check_code(config)
    if run is not None:
        _warn_of_changes(config, run, supplied)


def _warn_of_changes(config: ConfigStore, run: Path, supplied: Supplied) -> None:
    """Report on the standard error which of the run's own components do something else now."""
    from turnwise.runs.run_folder import RunFolder
    from turnwise.trainer.components import UserComponents
    from turnwise.trainer.recording import identity

    before = RunFolder(run).status.get("identity")
    if not isinstance(before, dict) or supplied.environment is not None:
        return
    changed: list[str] = []
    for part, own in config.parts().items():
        ending = f" of {supplied.part or part}" if supplied.part or part else ""
        for name, value in identity(UserComponents().filled_from(own), own).items():
            known = before.get(f"{name}{ending}", before.get(name, value))
            if known != value and not getattr(supplied, name, None):
                changed.append(f"the {name.replace('_', ' ')}{ending}")
    if changed:
        say(
            f"{' and '.join(dict.fromkeys(changed))} changed since the run in {run} began: what "
            "follows is played with what is there now",
            err=True,
        )


def _look_at_older(config: ConfigStore, source: Path) -> None:
    """Take from `run.json` what the settings of a run that an older version began do not say."""
    from turnwise.runs.older_runs import NOT_RECORDED, is_older, name_lost_environment
    from turnwise.runs.run_folder import RunFolder

    folder = RunFolder(run_of(source))
    status = folder.facts
    if not is_older(status):
        return
    name_lost_environment(config, status)
    say(
        f"note: {folder.path} {NOT_RECORDED}. What it was given is named by the options --reward, "
        "--tool, --parser, --system-prompt and --dataset.",
        err=True,
    )


def _name_prompts(config: ConfigStore) -> None:
    """Name the environment of a run that has a dataset and names none: its rows are prompts.

    Before anything is replaced: other rows do not make it another environment.
    """
    from turnwise.env.catalog import PROMPTS
    from turnwise.trainer.components import UserComponents, environment_of

    if config.environments is None and environment_of(UserComponents(), config) == PROMPTS:
        config.environment.name = PROMPTS


def load_with_settings(
    name: str,
    source: Path | None,
    checkpoint: str,
    supplied: Supplied,
    trust_remote_code: bool,
) -> tuple[LoadedModel, ConfigStore]:
    """Return the model of a run, a checkpoint or a name, and the settings under which it plays."""
    from turnwise.config import ConfigStore
    from turnwise.trainer.state import load_configured_model, load_trained_model

    if source is None:
        config = ConfigStore()
        config.model.model_name = name
        config.model.trust_remote_code = trust_remote_code
        return load_configured_model(config), config
    which: Literal["best", "last"] = "best" if checkpoint == "best" else "last"
    return load_trained_model(
        source,
        which,
        trust_remote_code=trust_remote_code,
        model=supplied.model,
    )


def rows_of(parts: UserComponents) -> Rows | None:
    """Return the rows that evaluation plays."""
    return parts.eval_rows
