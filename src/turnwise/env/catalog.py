"""Turns a name, a class, a factory or an instance into a factory of fresh environments."""

import contextlib
import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from turnwise.config import EnvironmentConfig
from turnwise.env.base import BaseEnvironment
from turnwise.errors import ConfigError, EnvironmentFault, did_you_mean
from turnwise.user_code import import_object, require_code

EnvironmentFactory: TypeAlias = Callable[[], BaseEnvironment]
EnvironmentSource: TypeAlias = str | BaseEnvironment | Callable[..., BaseEnvironment]

# Built-in environments; a new one is one line here.
BUILT_IN: dict[str, str] = {
    "guess-number": "turnwise.env.games:GuessNumberEnvironment",
    "grid-world": "turnwise.env.games:GridWorldEnvironment",
    "simple-game": "turnwise.env.games:SimpleGameEnvironment",
    "custom-game": "turnwise.env.games:CustomGameEnvironment",
}

PROMPTS = "prompts"
"""The environment of a dataset of prompts; it needs a dataset."""

# "gym:CartPole-v1" is CartPole-v1 of the adapter gym.
ADAPTERS: dict[str, str] = {
    "gym": "turnwise.env.adapters.gymnasium:GymnasiumEnvironment",
    "textarena": "turnwise.env.adapters.textarena:TextArenaEnvironment",
    "reasoning-gym": "turnwise.env.adapters.reasoning_gym:ReasoningGymEnvironment",
    "openenv": "turnwise.env.adapters.openenv:OpenEnvEnvironment",
}

# A dataset "openenv:http://localhost:8000" has the rows that a function of (rest, split) returns.
TASK_SOURCES = {"openenv": "turnwise.env.adapters.openenv_server:task_rows"}


def environment_factory(
    source: EnvironmentSource, config: EnvironmentConfig | Mapping[str, Any] | None = None
) -> EnvironmentFactory:
    """Returns a function that creates a fresh environment with each call.

    `source` is a built-in name, `path.py:Class`, `module:Class`, a class, a factory (a function
    that makes an environment), or an instance, which stays unused: each call spawns a copy. A class
    or a function gets `config.params` as keyword arguments, or, if it has an argument `config`, the
    whole config; so does a function's only argument that `params` do not name. A class that cannot
    be instantiated is an error at once.
    """
    config = EnvironmentConfig.of(config)
    if isinstance(source, str):
        name, (prefix, colon, rest) = source, source.partition(":")
        source = source_by_name(name)
        if colon and prefix in ADAPTERS:
            if (code := adapter_code(name)) is not None:
                require_code(code)
            return functools.partial(source, rest, config)
    if isinstance(source, BaseEnvironment):
        return source.spawn
    if not callable(source):
        raise ConfigError(
            f"environment got {source!r:.80} ({type(source).__name__}), expected a name, a class "
            "derived from turnwise.BaseEnvironment, an object of one, or a function that makes one."
        )
    if isinstance(source, type):
        name = source.__qualname__.rpartition(".")[2]
        if not issubclass(source, BaseEnvironment):
            fix = f"Write: class {name}(BaseEnvironment):"
            raise ConfigError(f"{name} is not derived from turnwise.BaseEnvironment. {fix}")
        if missing := sorted(getattr(source, "__abstractmethods__", ())):
            raise ConfigError(
                f"{name} has no method {' and no method '.join(missing)}. It needs reset(), "
                "step(action) -> (observation, reward, done, info) and get_state_description()."
            )
    arguments = _arguments(source, config)

    def make() -> BaseEnvironment:
        env = source(**arguments)
        if not isinstance(env, BaseEnvironment):
            raise EnvironmentFault(
                f"the environment factory {_name(source)} returned {type(env).__name__}, "
                "expected a BaseEnvironment. Derive the class from turnwise.BaseEnvironment."
            )
        takes_config = any(value is config for value in arguments.values())
        if not takes_config and config.max_steps is not None:
            env.max_steps = config.max_steps
        return env

    return make


def make_environment(
    source: EnvironmentSource, config: EnvironmentConfig | Mapping[str, Any] | None = None
) -> BaseEnvironment:
    """Creates one environment."""
    return environment_factory(source, config)()


def source_by_name(name: str) -> Callable[..., BaseEnvironment]:
    """Returns the class or factory of a name: `guess-number`, `gym:CartPole-v1`, `file.py:Maze`."""
    prefix, colon, _ = name.partition(":")
    built_in = {**BUILT_IN, PROMPTS: "turnwise.env.prompts:PromptEnvironment"}
    target = ADAPTERS.get(prefix) if colon else built_in.get(name)
    if target is None and not colon:
        hint = did_you_mean(name, BUILT_IN)
        forms = "Your own is written path/to/file.py:ClassName, a Gymnasium one gym:CartPole-v1."
        raise ConfigError(f"there is no environment {name!r}. {hint} {forms}")
    source: Callable[..., BaseEnvironment] = import_object(
        target or name, option="--env or environment.name", is_built_in=target is not None
    )
    return source


def adapter_code(name: str) -> str | None:
    """Returns the code in a name: Gymnasium imports the module in `gym:module:Name-v0`."""
    prefix, _, rest = name.partition(":")
    return rest if prefix == "gym" and ":" in rest else None


def _arguments(source: Callable[..., Any], config: EnvironmentConfig) -> dict[str, Any]:
    """Returns the arguments of a class or function: the config, or `params` by their names."""
    signature = _signature(source)
    takes_none = config.params and _inherits_unread(source)
    parameters = [] if takes_none else list(signature.parameters.values())
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    arguments = copy.deepcopy(dict(config.params))
    if "config" in names:  # it reads there what it has no argument for
        arguments = {name: value for name, value in arguments.items() if name in names}
        arguments["config"] = config
    elif not isinstance(source, type) and len(parameters) == len(names) == 1:
        (only,) = parameters
        is_typed = only.annotation is not only.empty and "Config" not in str(only.annotation)
        is_required = only.default is only.empty and only.kind is not only.KEYWORD_ONLY
        if is_required and not is_typed and only.name not in arguments:
            return {only.name: config}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    odd = next((key for key in arguments if key not in names and not takes_any), None)
    if odd is not None:
        takes = f"takes {signature}. {did_you_mean(odd, names)}" if names else "takes no arguments."
        raise ConfigError(f"environment.params has {odd!r}, and {_name(source)} {takes}")
    if "max_steps" in names and config.max_steps is not None:
        arguments.setdefault("max_steps", config.max_steps)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        name = str(error).rpartition(" ")[2].strip("'")
        raise ConfigError(
            f"{_name(source)} takes {signature}: {error}. Set environment.params: {{{name}: ...}} "
            f"(-p {name}=...), or pass an object: environment={_name(source)}(...). An argument "
            "named config gets all settings of the environment."
        ) from None
    return arguments


def _inherits_unread(source: Callable[..., Any]) -> bool:
    """Whether a class has no constructor of its own, and never reads the config of the base's."""
    own = (
        source.__mro__[: source.__mro__.index(BaseEnvironment)] if isinstance(source, type) else ()
    )
    if not own or any("__init__" in vars(kind) for kind in own):
        return False
    with contextlib.suppress(OSError, TypeError):  # its source is unknown
        return not any("config" in inspect.getsource(kind) for kind in own)
    return False


def _signature(source: Callable[..., Any]) -> inspect.Signature:
    """Returns the signature; of a constructor that passes everything on, that of the next class."""
    passes_on = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    for kind in source.__mro__ if isinstance(source, type) else ():
        if "__init__" not in vars(kind) or kind is object:
            continue
        constructor = inspect.signature(vars(kind)["__init__"])
        parameters = list(constructor.parameters.values())[1:]
        if {p.kind for p in parameters} != passes_on:
            empty = inspect.Signature.empty
            return constructor.replace(parameters=parameters, return_annotation=empty)
    return inspect.signature(source)


def _name(source: object) -> str:
    return getattr(source, "__qualname__", type(source).__name__)
