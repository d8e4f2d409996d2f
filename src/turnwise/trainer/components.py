"""What a user passes to the trainer: environment or agent, reward, dataset, tools; or a mix."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from turnwise.algo import Algorithm
from turnwise.algo.choose import EstimatorChoice, LossChoice
from turnwise.config import ConfigStore, DatasetConfig, EnvironmentConfig, EnvironmentItem
from turnwise.data import PromptDataset
from turnwise.data.dataset import dataset_by_name
from turnwise.data.held_out import Split, split_rows
from turnwise.env import BaseEnvironment, PromptEnvironment, environment_factory
from turnwise.env.catalog import PROMPTS, EnvironmentFactory, EnvironmentSource
from turnwise.env.driver import close_environment
from turnwise.episode import CollectorOptions, EpisodeLimits, episode_limits
from turnwise.episode.collector import EpisodeSource
from turnwise.episode.options import SUMMARY_PROMPT, ParserChoice
from turnwise.errors import ConfigError, did_you_mean
from turnwise.inference import SamplingParams
from turnwise.models import check_tokenizer, load_tokenizer
from turnwise.reward import RewardFn
from turnwise.reward.function import reward_by_name
from turnwise.tools import ToolRegistry
from turnwise.tools.by_name import parser_by_name, tools_by_name
from turnwise.trainer.rollout import Curriculum, Rows, check_curriculum, evaluation_tasks
from turnwise.trainer.state import (
    check_reference,
    load_configured_model,
    load_configured_model_in_parts,
    load_configured_tokenizer,
)
from turnwise.user_code import code_name, import_object, names_code, require_use

if TYPE_CHECKING:
    from turnwise.agents.expert import Expert
    from turnwise.agents.runner import AgentSource
    from turnwise.chat.tree import ThoughtPolicy

GivenEnvironment: TypeAlias = (
    EnvironmentSource | tuple[EnvironmentSource, float] | Mapping[str, Any]
)
"""An environment of a mix: alone, with a weight, or as a dict with the keys of the YAML."""
_SETTINGS = ("weight", "name", "max_steps", "params")
_INTERPRETERS = {"python", "python3", "node", "npx", "uv", "uvx", "run", "bash", "sh", "env"}
"""Words of an agent's command before the name of the program that is meant."""
_OBJECTS = ("reward", "dataset", "eval_dataset", "tools", "system_prompt", "curriculum")
OWN_SETTINGS = {"reward_fn": "reward", "tools": "tools", "system_prompt": "system_prompt"}
"""What an environment of a mix may have for itself: arguments of the trainer, and settings."""


@dataclass(frozen=True)
class UserComponents:
    """What a user passes to the trainer."""

    environment: EnvironmentSource | None = None
    reward_fn: RewardFn | None = None
    dataset: Any = None
    eval_dataset: Any = None
    tools: ToolRegistry | None = None
    parser: ParserChoice | None = None
    system_prompt: str | None = None
    tokenizer: Any = None
    model: Any = None
    limits: EpisodeLimits | None = None
    adv_estimator: EstimatorChoice | None = None
    policy_loss: LossChoice | None = None
    agent: AgentSource | None = None
    """An agent that owns its loop, in place of `environment`."""
    expert: Expert | str | None = None
    """What replies in the model's place when the agent's expert is imitated."""
    curriculum: Curriculum | None = None
    mix: tuple[MixEnvironment, ...] = ()
    """The environments of a mix, in place of `environment`; each has its own rows."""
    eval_fraction: float | None = None
    """The share of the dataset that is held out, where there is no dataset for evaluation."""

    def filled_from(self, config: ConfigStore) -> UserComponents:
        """Return these components, completed from the settings."""
        agent = find_agent(self.agent, config)
        has_one = config.environments is None and agent is None
        environment = find_environment(self, config) if has_one else None
        are_prompts = environment in (PROMPTS, PromptEnvironment)
        prompt = config.system_prompt if self.system_prompt is None else self.system_prompt
        return dataclasses.replace(
            self,
            environment=environment,
            agent=agent,
            expert=find_expert(self.expert, config, agent),
            dataset=_rows(self.dataset, config.dataset, are_prompts),
            eval_dataset=_rows(self.eval_dataset, config.eval_dataset, are_prompts, "eval_dataset"),
            reward_fn=reward_by_name(config.reward) if self.reward_fn is None else self.reward_fn,
            parser=parser_by_name(config.parser) if self.parser is None else self.parser,
            system_prompt=prompt,
            limits=episode_limits(config, self.limits),
            eval_fraction=config.training.eval_fraction,
        )

    @functools.cached_property
    def _split(self) -> Split:
        if self.dataset is None or self.eval_dataset is not None:
            return Split(self.dataset, self.eval_dataset)
        return split_rows(self.dataset, self.eval_fraction)

    @property
    def train_rows(self) -> Rows | None:
        """The rows to train on."""
        return cast("Rows | None", self._split.train)

    @property
    def eval_rows(self) -> Rows | None:
        """The rows to evaluate on; the training rows if there are too few to hold some out."""
        return cast("Rows | None", self._split.held_out if self.holds_rows_out else self.dataset)

    @property
    def holds_rows_out(self) -> bool:
        """Whether there are rows that are not trained on."""
        return self._split.held_out is not None

    @property
    def evaluates_on(self) -> str:
        """What evaluations run on: `held-out seeds`, `16 held-out rows` ..."""
        if self.mix:
            return " and ".join(dict.fromkeys(part.components.evaluates_on for part in self.mix))
        if self.eval_dataset is not None:
            return f"{len(self.eval_dataset):,} rows of the evaluation dataset"
        if self.dataset is None:
            return "held-out seeds"
        held_out = self._split.held_out
        return "training rows" if held_out is None else f"{len(held_out):,} held-out rows"

    @property
    def environment_name(self) -> str:
        """The name of the environment, or of the agent: of its function, class or program."""
        if isinstance(self.agent, str):
            words = [word for word in shlex.split(self.agent) if not word.startswith("-")]
            programs = [Path(word).stem for word in words]
            return next((name for name in programs if name not in _INTERPRETERS), programs[0])
        source: Any = self.environment if self.agent is None else self.agent
        if isinstance(source, str):
            return source
        while isinstance(source, functools.partial) and self.agent is not None:
            source = source.func
        if isinstance(source, BaseEnvironment):  # which may answer for every attribute
            source = type(source)
        return str(getattr(source, "__qualname__", type(source).__name__)).rpartition(".")[2]

    def parts(self, config: ConfigStore) -> tuple[MixEnvironment, ...]:
        """Return the environments of the mix; without one, the only one under an empty name."""
        return self.mix or (MixEnvironment("", 1.0, config, self, self),)

    def curricula(self, config: ConfigStore) -> dict[str, Curriculum]:
        """Return each curriculum by the prefix of the metrics that it observes."""
        given = {part.prefix: part.given.curriculum for part in self.parts(config)}
        return {prefix: choice for prefix, choice in given.items() if choice is not None}

    def algorithm(self, config: ConfigStore) -> Algorithm:
        """Return the estimator and policy loss that were given, or those of the settings."""
        return Algorithm.from_settings(config.training, self.adv_estimator, self.policy_loss)

    def turn_limit(self, config: ConfigStore) -> int:
        """Return the turns after which an episode is truncated; of a mix, the most of them.

        Where the limits leave it to the environment, one is created to know its steps, which a
        constructor may derive from its parameters.
        """
        limits = self.limits or episode_limits(config)
        if limits.max_turns is not None or self.agent is not None:
            return limits.turn_limit(None)
        turns = []
        for part in self.parts(config):
            environment = part.components.factory(part.config)()
            has_tools = self.tools is not None or bool(config.tools or environment.get_tools())
            turns.append(limits.turn_limit(environment.max_steps, has_tools=has_tools))
            close_environment(environment)
        return max(turns)

    def horizon(self, config: ConfigStore) -> int | None:
        """Return the most tokens that an agent can sample in an episode, by the limits in force.

        Only Dr. GRPO's aggregation of the loss needs it.
        """
        if config.training.loss_agg_mode != "seq-mean-token-sum-norm":
            return None
        limits = self.limits or episode_limits(config)
        return limits.horizon(self.turn_limit(config))

    def factory(self, config: ConfigStore) -> EnvironmentFactory:
        """Return what makes a fresh environment; for a mix, the first environment of it."""
        if self.mix:
            return self.mix[0].components.factory(self.mix[0].config)
        if self.agent is not None:
            raise no_environment(self.environment_name)
        assert self.environment is not None
        return environment_factory(self.environment, config.environment)

    def episode_source(
        self, config: ConfigStore, closing: contextlib.ExitStack
    ) -> EnvironmentFactory | EpisodeSource:
        """Return what creates episodes: an environment's factory, or the agent's episodes."""
        if self.agent is None:
            return self.factory(config)
        from turnwise.agents.episode import AgentEpisodes  # here: it needs an extra

        assert not isinstance(self.expert, str)
        thoughts: ThoughtPolicy = "keep" if config.inference.thoughts == "keep" else "as_sent"
        episodes = AgentEpisodes(self.agent, expert=self.expert, thoughts=thoughts)
        closing.callback(episodes.close)
        return episodes

    def registry(
        self, config: ConfigStore, closing: contextlib.ExitStack | None = None
    ) -> ToolRegistry | None:
        """Return the agent's tools, or None; `closing` ends the servers that this starts."""
        if self.tools is None and config.tools:
            return tools_by_name(config.tools, closing)
        return self.tools

    def model_and_tokenizer(
        self, config: ConfigStore, *, has_weights: bool = True
    ) -> tuple[Any, Any]:
        """Return the model and tokenizer that were given, or those of the settings.

        Without `has_weights` only a given model has them, and one that must be loaded whole.
        """
        model, tokenizer = self.model, self.tokenizer
        if model is not None and tokenizer is None:
            raise ConfigError("got model= without tokenizer=: pass that model's tokenizer, too")
        if model is None and not has_weights:
            model = load_configured_model_in_parts(config, is_learner=False)
            tokenizer = tokenizer or load_configured_tokenizer(config)
        elif model is None:
            loaded = load_configured_model(config)
            model, tokenizer = loaded.model, tokenizer or loaded.tokenizer
        if isinstance(tokenizer, str):
            tokenizer = load_tokenizer(tokenizer)
        check_tokenizer(tokenizer)
        check_reference(config, tokenizer)
        return model, tokenizer

    def episode_options(
        self, config: ConfigStore, closing: contextlib.ExitStack | None = None
    ) -> CollectorOptions:
        """Returns how episodes are played; `closing` ends the tool servers that this starts."""
        return CollectorOptions(
            limits=self.limits,
            sampling=SamplingParams(config.inference.temperature, top_p=config.inference.top_p),
            tools=self.registry(config, closing),
            parser=self.parser or "auto",
            system_prompt=self.system_prompt,
            reward_fn=self.reward_fn,
            seed=config.training.seed,
            enable_thinking=config.inference.enable_thinking,
            thoughts=config.inference.thoughts or "keep",
            summary_prompt=config.inference.summary_prompt or SUMMARY_PROMPT,
            on_error=config.training.on_error,
            stall_timeout=config.inference.stall_timeout,
        )

    def mix_kinds(
        self, options: CollectorOptions, closing: contextlib.ExitStack | None = None
    ) -> dict[str, EpisodeKind]:
        """Return how the episodes of each environment of a mix are played, based on `options`."""
        kinds = {}
        for part in self.mix:
            user = part.components
            tools = user.registry(part.config, closing) if part.has_own_tools else options.tools
            part_options = dataclasses.replace(
                options, reward_fn=user.reward_fn, system_prompt=user.system_prompt, tools=tools
            )
            kinds[part.name] = EpisodeKind(user.factory(part.config), part_options)
        return kinds


@dataclass(frozen=True)
class EpisodeKind:
    """An environment, and how its episodes are played."""

    factory: EnvironmentFactory
    options: CollectorOptions


@dataclass(frozen=True)
class MixEnvironment:
    """One environment of a mix, with its own components."""

    name: str
    weight: float
    config: ConfigStore
    """The settings of a run in which it is the only environment."""
    given: UserComponents
    """Those given in Python for this environment alone."""
    components: UserComponents
    """All components of its episodes, its own and shared ones."""
    has_own_tools: bool = False

    @property
    def prefix(self) -> str:
        """Of the names of its metrics: `maze/`; empty without a mix."""
        return f"{self.name}/" if self.name else ""


def find_environment(user: UserComponents, config: ConfigStore) -> EnvironmentSource:
    """Return the environment that was given or named; a dataset alone means prompts."""
    if user.environment is not None:
        return user.environment
    has_rows = user.dataset is not None or config.dataset.path is not None
    is_named = config.environment.name != EnvironmentConfig().name
    return PROMPTS if has_rows and not is_named else config.environment.name


def find_agent(given: Any, config: ConfigStore) -> AgentSource | None:
    """Return the agent that was given or that the settings name; None without one."""
    agent = config.agent if given is None else given
    if agent is None:
        return None
    from turnwise.agents.runner import check_agent

    if isinstance(agent, str) and (names_code(agent) or agent.startswith("<")):
        agent = import_object(agent, option="--agent or the setting agent")
    elif isinstance(agent, str) and given is None:
        require_use(f"the agent's command {agent!r}")
    return check_agent(agent)


def find_expert(given: Any, config: ConfigStore, agent: AgentSource | None) -> Expert | None:
    """Return the agent's expert that was given or that the settings name; None without one."""
    expert = config.expert if given is None else given
    if agent is None and expert is not None:
        raise ConfigError(
            "expert is given without an agent, whose turns it would write. An environment has its "
            "own expert, the method expert_action."
        )
    if isinstance(expert, str):
        expert = import_object(expert, option="the setting expert")
    signature = "a function of (messages, tools) that returns the reply as a text or a message"
    if expert is not None and not callable(expert):
        raise ConfigError(f"expert got {type(expert).__name__}, expected {signature}")
    start = config.training.warm_start
    if agent is not None and (start == "random" or (start == "expert" and expert is None)):
        raise ConfigError(
            f"training.warm_start got {start!r}, and an agent has no such player. Set it to "
            f"expert, and pass Trainer(expert=...) or set expert: file.py:name, {signature}."
        )
    return cast("Expert | None", expert)


def no_environment(name: str) -> ConfigError:
    """Return the error of a command that needs an environment, for the run of an agent."""
    return ConfigError(
        f"this is played by the agent {name}, which has no environment. turnwise eval plays "
        "it, turnwise view shows its conversations, turnwise serve lets you talk to its model."
    )


def _rows(
    dataset: Any, named: DatasetConfig, are_prompts: bool, name: str = "dataset"
) -> Rows | None:
    rows: Any = dataset
    if dataset is None:
        rows = dataset_by_name(named, are_prompts=are_prompts)
    elif isinstance(dataset, list | str | Path):
        rows = PromptDataset(dataset, prompt_key="prompt" if are_prompts else None)
    if rows is None:
        return None
    if isinstance(rows, Mapping) or not (hasattr(rows, "__len__") and hasattr(rows, "__getitem__")):
        raise ConfigError(
            f"{name} got {type(rows).__name__}, expected a file (.jsonl, .json, .parquet), a list "
            "of rows, or an object with len() and rows by number. Make a list of it; of several "
            "splits pass one: dataset['train']."
        )
    if not len(rows):
        raise ConfigError(f"{name} has no rows, expected at least one")
    return cast("Rows", rows)


def as_registry(tools: Any) -> ToolRegistry | None:
    """Return tools that a user passed as a registry, if there are any."""
    return tools if tools is None or isinstance(tools, ToolRegistry) else ToolRegistry(tools)


def either(**named: Any) -> Any:
    """Return the one that is given of two arguments with the same meaning."""
    given = [name for name, value in named.items() if value is not None]
    if len(given) > 1:
        raise ConfigError(f"got {' and '.join(given)}, which mean the same. Pass one of them.")
    return named[given[0]] if given else None


def with_mix(
    config: ConfigStore, given: UserComponents, environments: Iterable[GivenEnvironment] | None
) -> tuple[ConfigStore, UserComponents]:
    """Return the settings and the user's components with the mix that one of them has.

    Each environment of it gets its own components, and the shared ones where it has none.
    """
    _refuse_with_agent(given, environments)
    in_python: list[UserComponents] | None = None
    if environments is not None:
        if isinstance(environments, str | Mapping) or not isinstance(environments, Iterable):
            raise ConfigError(
                f"environments got {environments!r:.200}, expected a list of environments, of "
                "(environment, weight), or of dicts"
            )
        parsed = [_mix_environment(environment) for environment in environments]
        in_python = [components for _, components in parsed]
        config = dataclasses.replace(config, environments=[item for item, _ in parsed]).validate()
    check_curriculum(given.curriculum)
    if config.environments is None:
        sources = config.dataset.path, config.eval_dataset.path, given.dataset, given.eval_dataset
        if given.curriculum is not None and all(rows is None for rows in sources):
            # Without a task its environment may not even reset. Rows are recorded, for `eval`.
            tasks = evaluation_tasks(given.curriculum)
            given = dataclasses.replace(given, eval_dataset=tasks)
        return config, given
    for name in ("environment", "agent", "dataset", "eval_dataset", "curriculum"):
        if getattr(given, name) is not None:
            raise ConfigError(
                f"{name}= and a mix of environments are both given. Keep one of them; rows and "
                "curricula belong to one environment of a mix: {'environment': ..., 'dataset': ...}"
            )
    in_python = in_python or [UserComponents() for _ in config.environments]
    mix = []
    settings = config.parts().items()
    for item, own, (name, part) in zip(config.environments, in_python, settings, strict=True):
        mix.append(_part_of_mix(name, item, part, own, given))
    return config, dataclasses.replace(given, mix=tuple(mix))


def _refuse_with_agent(
    given: UserComponents, environments: Iterable[GivenEnvironment] | None
) -> None:
    if given.agent is None:
        return
    others = {
        "environment": given.environment,
        "tools": given.tools,
        "system_prompt": given.system_prompt,
        "environments": environments,
    }
    for name, value in others.items():
        if value is not None:
            raise ConfigError(
                f"agent= and {name}= are both given. An agent has its own loop, tools and prompts, "
                f"and no environment: leave out {name}=, or leave out agent=."
            )


def _part_of_mix(
    name: str, item: EnvironmentItem, config: ConfigStore, own: UserComponents, run: UserComponents
) -> MixEnvironment:
    """Return an environment of a mix: with what it has of its own, and what the run has."""
    replaced: dict[str, Any] = {"dataset": own.dataset, "eval_dataset": own.eval_dataset}
    for argument, setting in OWN_SETTINGS.items():
        if getattr(own, argument) is not None or getattr(item, setting) is not None:
            # Where this is None, the settings of the environment have it.
            replaced[argument] = getattr(own, argument)
    source = item.environment if own.environment is None else own.environment
    components = dataclasses.replace(run, environment=source, **replaced).filled_from(config)
    return MixEnvironment(name, item.weight, config, own, components, "tools" in replaced)


def _mix_environment(given: GivenEnvironment) -> tuple[EnvironmentItem, UserComponents]:
    if isinstance(given, tuple) and len(given) == 2:
        given = {"environment": given[0], "weight": given[1]}
    if not isinstance(given, Mapping):
        given = {"environment": given}
    known = ("environment", *_SETTINGS, *_OBJECTS)
    for odd in (key for key in given if key not in known):
        hint = did_you_mean(odd, known)
        raise ConfigError(f"an environment of a mix has no setting {odd!r}. {hint}")
    if "environment" not in given or isinstance(given["environment"], tuple):
        raise ConfigError(
            f"environments got {given!r:.200}, expected an environment, (environment, weight), or "
            "a dict with 'environment'"
        )
    source = given["environment"]
    if isinstance(source, BaseEnvironment) and {"max_steps", "params"} & set(given):
        raise ConfigError(
            f"an environment of a mix got max_steps or params, and {type(source).__name__} is "
            "an instance, which has its settings already. Pass the class, or only the instance."
        )
    named = {key for key in _OBJECTS if _is_named(key, given.get(key))}
    objects = {key: given[key] for key in _OBJECTS if key in given and key not in named}
    objects["tools"] = as_registry(objects.get("tools"))
    curriculum = objects.get("curriculum")
    check_curriculum(curriculum)
    if curriculum is not None and not {"dataset", "eval_dataset"} & set(given):
        objects["eval_dataset"] = evaluation_tasks(curriculum)
    reward_fn = objects.pop("reward", None)
    label = source if isinstance(source, str) else code_name(source)
    settings = {key: given[key] for key in (*_SETTINGS, *named) if given.get(key) is not None}
    return EnvironmentItem(label, **settings), UserComponents(source, reward_fn, **objects)


def _is_named(key: str, value: Any) -> bool:
    """Whether a value is written as in YAML: the name of code, or a mapping of settings."""
    if key in ("dataset", "eval_dataset"):
        return isinstance(value, Mapping)
    if isinstance(value, list) and key in ("reward", "tools"):
        return all(isinstance(entry, str | Mapping) for entry in value)
    return key == "reward" and isinstance(value, str)
