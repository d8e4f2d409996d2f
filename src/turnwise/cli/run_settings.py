"""The settings and components of a run that a command plays, with what the options override.

The run folder records environment, reward, tools, parser, system prompt and dataset by name. If one
cannot be imported from there (a class of a notebook), the error names the option that supplies it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from turnwise.cli.common import environment_config, say
from turnwise.cli.run_paths import find_run, run_of
from turnwise.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from turnwise.config import ConfigStore
    from turnwise.models import LoadedModel


@dataclass(frozen=True)
class Supplied:
    """The components that the command line names; None keeps the run's own."""

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
    agent: str | None = None
    """An agent that calls the model over HTTP."""

    def allow_code(self, *more: str | None) -> None:
        """Allow the code that these options, and `more` of them, name: the user typed the names."""
        from turnwise.cli.settings import name_code

        if self.agent is not None:
            from turnwise.trainer.agents import remember_agent  # late: it imports torch

            remember_agent(self.agent)
        named = [self.environment, self.agent, self.reward, self.parser, *(self.tools or []), *more]
        for target in named:
            if target is not None:
                name_code(target)

    def with_absolute_paths(self) -> Supplied:
        """Return the same with absolute paths: a run may have another base directory."""
        return dataclasses.replace(
            self,
            environment=_absolute(self.environment),
            agent=_absolute(self.agent),
            reward=_absolute(self.reward),
            parser=_absolute(self.parser),
            dataset=self.dataset and [str(Path(path).absolute()) for path in self.dataset],
            tools=self.tools and [_absolute(tool) or tool for tool in self.tools],
        )

    def put_into(self, config: ConfigStore) -> None:
        """Write the supplied components into the settings.

        Another environment drops the run's dataset, reward and tools, which belong to the old one.
        They are kept if it replaces an environment that cannot be restored. Another agent keeps the
        dataset and the reward: it does the same tasks.
        """
        from turnwise.config import DatasetConfig

        self._choose_part(config)
        is_lost = config.environments is None and config.environment.name.startswith("<")
        if self.environment is not None and is_lost:
            config.environment.name = self.environment
        elif self.environment is not None:
            config.environments = config.agent = config.expert = None
            config.environment = environment_config(self.environment, None, None)
            config.dataset, config.eval_dataset = DatasetConfig(), DatasetConfig()
            config.reward, config.tools = None, []
        if self.agent is not None:
            if not (config.agent or "").startswith("<"):  # the expert is the other agent's
                config.expert = config.training.warm_start = None
            config.agent = self.agent
        if self.param or self.max_steps:
            changed = environment_config(config.environment.name, self.param, self.max_steps)
            config.environment.params |= changed.params
            if self.max_steps is not None:
                config.environment.max_steps = self.max_steps
        for item in config.environments or ():  # an override applies to all of them
            item.reward = None if self.reward is not None else item.reward
            item.tools = None if self.tools else item.tools
            item.system_prompt = None if self.system_prompt is not None else item.system_prompt
        if self.dataset:
            config.eval_dataset = DatasetConfig(path=self.dataset, columns=config.dataset.columns)
            config.dataset = DatasetConfig()
        config.tools = list(self.tools or config.tools)
        for name in ("reward", "parser", "system_prompt"):
            if (value := getattr(self, name)) is not None:
                setattr(config, name, value)
        if config.agent is not None:
            config.validate()  # an agent takes no tools and no parameters of an environment

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


def _absolute(target: str | None) -> str | None:
    """Return `file.py:Name` with the absolute path of a file that exists; others as they are."""
    place, colon, name = (target or "").rpartition(":")
    is_here = colon and place.endswith(".py") and Path(place).is_file()
    return f"{Path(place).absolute()}:{name}" if is_here else target


def source_of(name: str | None, checkpoint: str = "last") -> Path | None:
    """Return the run or the checkpoint whose settings are used; None for a model."""
    if checkpoint in ("best", "last"):
        return None if name is None else find_run(name)
    run = find_run(name) if name is not None and checkpoint.isdecimal() else None
    found = find_run(
        checkpoint if run is None else run_of(run) / "checkpoints" / f"step-{checkpoint:0>8}"
    )
    if found is None:
        raise ConfigError(
            f"--checkpoint got {checkpoint!r}, expected best, last, the step of a checkpoint, or "
            "its folder, for example runs/mine/checkpoints/step-00000010"
        )
    return found


def settings_of(source: Path) -> ConfigStore:
    """Return the settings of a run or of a checkpoint, without its model."""
    from turnwise.config import ConfigStore
    from turnwise.runs.places import find_models, places_of
    from turnwise.runs.run_folder import RunFolder

    file = source / "config.yaml"
    if not file.is_file():
        raise ConfigError(
            f"{source} has no config.yaml: the run ended before it wrote its settings"
        )
    config = ConfigStore.load(file)
    find_models(config, places_of(run_of(source)))
    if RunFolder(run_of(source)).evaluated_on == "training rows":
        config.training.eval_fraction = None  # it has trained on all rows
    return config


def played_settings(
    source: Path | None, supplied: Supplied, *, is_checked: bool = True
) -> ConfigStore:
    """Return the settings of a run, or the defaults if there is none, with the overrides."""
    from turnwise.config import ConfigStore

    if source is None:
        config = ConfigStore()
        supplied.put_into(config)
    else:
        config = settings_of(source)
        restore(config, source, supplied, is_checked=is_checked)
    return config


def restore(
    config: ConfigStore,
    source: Path | None,
    supplied: Supplied,
    *,
    takes_mix: bool = False,
    is_checked: bool = True,
) -> None:
    """Write the overrides into a run's settings, find the code that they name, and import it.

    A mix of environments is refused unless the command `takes_mix`. Without `is_checked` the code
    is only found: the command itself reports what fails.
    """
    from turnwise.cli.settings import check_code, find_code
    from turnwise.runs.places import places_of

    if source is not None:
        _name_prompts(config)
    (supplied if source is None else supplied.with_absolute_paths()).put_into(config)
    if config.environments is not None and not takes_mix:
        names = ", ".join(config.parts())
        raise ConfigError(
            f"{source} is a run with a mix of environments, and this command plays in one of them: "
            f"{names}. Name it: --part {next(iter(config.parts()))}"
        )
    run = None if source is None else run_of(source)
    find_code(config, [] if run is None else places_of(run), run=run)
    if not is_checked:
        return
    check_code(config)
    if run is not None:
        _warn_of_changes(config, run, supplied)


def _warn_of_changes(config: ConfigStore, run: Path, supplied: Supplied) -> None:
    """Print to the standard error which of the run's own components have changed since."""
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
            f"{' and '.join(dict.fromkeys(changed))} changed since the run in {run} began: this "
            "command uses the present version",
            err=True,
        )


def _name_prompts(config: ConfigStore) -> None:
    """Name the environment of a run with a dataset and without an environment: rows are prompts.

    This comes before the overrides: other rows do not make it another environment.
    """
    from turnwise.env.catalog import PROMPTS
    from turnwise.trainer.components import UserComponents, environment_of

    if config.environments is not None or config.agent is not None:
        return
    if environment_of(UserComponents(), config) == PROMPTS:
        config.environment.name = PROMPTS


def which_checkpoint(checkpoint: str) -> Literal["best", "last"]:
    """Return the checkpoint of a run to load; that of a checkpoint's own folder is its last."""
    return "best" if checkpoint == "best" else "last"


def load_player(
    name: str,
    source: Path | None,
    checkpoint: str,
    config: ConfigStore,
    model: str | None,
    trust_remote_code: bool,
) -> tuple[LoadedModel, ConfigStore]:
    """Return the model of a run or a checkpoint and its settings; without one, the model `name`.

    `model` overrides the base model of the run's weights. `config` is used without a run.
    """
    from turnwise.trainer.state import load_configured_model, load_trained_model

    if source is None:
        config.model.model_name, config.model.local_path = name, None
        config.model.trust_remote_code = trust_remote_code
        return load_configured_model(config), config
    which = which_checkpoint(checkpoint)
    return load_trained_model(source, which, trust_remote_code=trust_remote_code, model=model)
