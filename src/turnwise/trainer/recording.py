"""The components of a run as names that `config.yaml` can hold, so that commands can load them.

`recorded` writes objects that were given in Python into the settings, by name. `identity` hashes
what each of them does, so that changed code is noticed when the run is started again.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import itertools
import json
import shlex
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from turnwise.algo.choose import (
    ADVANTAGE_ESTIMATORS,
    POLICY_LOSSES,
    EstimatorChoice,
    LossChoice,
    get_advantage_estimator,
    get_policy_loss,
)
from turnwise.algo.records import AdvantageEstimator, PolicyLoss
from turnwise.config import (
    ConfigStore,
    EnvironmentConfig,
    EnvironmentItem,
    LimitsConfig,
    RewardItem,
)
from turnwise.env import BaseEnvironment, make_environment
from turnwise.env.catalog import ADAPTERS, EnvironmentSource, source_by_name
from turnwise.env.driver import close_environment
from turnwise.reward import WeightedReward
from turnwise.reward.function import step_rewards
from turnwise.runs.named_files import names_of
from turnwise.tools import CalculatorTool, FunctionTool, PythonCodeTool, Tool, ToolRegistry
from turnwise.tools.base import as_tool
from turnwise.tools.by_name import ToolEntry, server_words, tools_by_name, uses_of
from turnwise.tools.mcp_source import MCPTool, MCPTools
from turnwise.tools.parsers import PARSERS
from turnwise.tools.python_code.tool import package_folders
from turnwise.trainer.agents import agent_hash, agent_label, remember_agent
from turnwise.trainer.components import MixEnvironment, UserComponents, environment_of
from turnwise.trainer.recorded_rows import dataset_hash, dataset_setting
from turnwise.user_code import (
    callable_label,
    fingerprint,
    instance_label,
    names_code,
    object_label,
    reference_to,
    remember_code,
    remember_use,
)

_UNLIMITED = 2**31 - 1


def recorded(config: ConfigStore, given: UserComponents) -> ConfigStore:
    """Return the settings with everything that was given in Python written in by name.

    `given` are the components that the user passed to the trainer. Those that cannot be imported
    again are written as `<notebook>:Name` and the like.
    """
    settings = copy.deepcopy(config)
    for item, part in zip(settings.environments or (), given.mix, strict=True):
        _record_environment(item, part)
    if given.agent is not None:
        settings.agent = agent_label(given.agent)
    if given.expert is not None:
        settings.expert = agent_label(given.expert)
    source = given.environment
    if source is None and given.dataset is not None and settings.agent is None:
        source = environment_of(given, config)  # prompts, if no other was named
    if source is not None:
        settings.environment = _environment(source, config.environment)
    if isinstance(given.reward_fn, WeightedReward):
        settings.reward = [
            RewardItem(None if function is step_rewards else callable_label(function), weight, name)
            for name, (function, weight) in given.reward_fn.functions.items()
        ]
    elif given.reward_fn is not None:
        settings.reward = callable_label(given.reward_fn)
    if given.tools is not None:
        settings.tools = _tool_entries(given.tools)
    if isinstance(given.parser, str):
        settings.parser = given.parser
    elif given.parser is not None:
        known = [name for name, kind in PARSERS.items() if kind is type(given.parser)]
        settings.parser = known[0] if known else instance_label(given.parser)
    if given.model is not None:
        settings.model.model_name, settings.model.local_path = object_label(given.model), None
    if given.system_prompt is not None:
        settings.system_prompt = given.system_prompt
    if given.limits is not None:
        settings.limits = LimitsConfig(**dataclasses.asdict(given.limits))
        # Null would mean `inference.max_tokens`; these limits replace those of that section.
        settings.limits.max_tokens_per_turn = given.limits.max_tokens_per_turn or _UNLIMITED
        settings.inference.max_turns = None
    if given.adv_estimator is not None:
        estimator = get_advantage_estimator(given.adv_estimator)
        name = _algorithm(given.adv_estimator, estimator, ADVANTAGE_ESTIMATORS)
        settings.training.adv_estimator = name
    if given.policy_loss is not None:
        loss = get_policy_loss(given.policy_loss)
        settings.training.policy_loss = _algorithm(given.policy_loss, loss, POLICY_LOSSES)
    if given.dataset is not None:
        settings.dataset = dataset_setting(given.dataset)
    if given.eval_dataset is not None:
        settings.eval_dataset = dataset_setting(given.eval_dataset)
    # The user has run all of this: later commands may, too.
    for named in names_of(settings):
        is_code = named.kind == "code" and names_code(named.text)
        if is_code and named.text.partition(":")[0] not in ADAPTERS:
            remember_code(named.text)
    remember_agent(settings.agent)
    for entry in settings.tools:
        for use in uses_of(entry):
            remember_use(use)
    return settings


def _record_environment(item: EnvironmentItem, part: MixEnvironment) -> None:
    """Write what was given in Python for an environment of a mix into its settings."""
    settings = recorded(part.config, part.given)
    item.environment = settings.environment.name
    item.max_steps, item.params = settings.environment.max_steps, settings.environment.params
    if part.given.reward_fn is not None:
        item.reward = settings.reward
    if part.given.tools is not None:
        item.tools = settings.tools
    if part.given.system_prompt is not None:
        item.system_prompt = settings.system_prompt
    item.dataset, item.eval_dataset = settings.dataset, settings.eval_dataset


def identity(user: UserComponents, config: ConfigStore) -> dict[str, str]:
    """Return a hash of each component of a run, by its name in the settings.

    In a mix, components of one environment are named after it: `environment of maze`.
    """
    hashes = {}
    environment = user.environment
    if user.agent is not None:
        hashes["agent"] = agent_hash(user.agent)
    elif isinstance(environment, str):
        hashes["environment"] = fingerprint(source_by_name(environment))
    elif isinstance(environment, BaseEnvironment) and _remaking_config(
        environment, config.environment
    ):  # as a command that has only its name hashes it
        hashes["environment"] = fingerprint(type(environment))
    elif not user.mix:
        hashes["environment"] = fingerprint(environment)
    if isinstance(user.reward_fn, WeightedReward):
        functions = user.reward_fn.functions.items()
        hashes["reward"] = _hash([[name, w, fingerprint(fn)] for name, (fn, w) in functions])
    else:
        hashes["reward"] = fingerprint(user.reward_fn)
    hashes["system_prompt"] = _hash(user.system_prompt or "")
    hashes["tools"] = _hash(_tools_description(user.tools, config))
    if user.agent is not None and user.expert is not None:
        hashes["expert"] = fingerprint(user.expert)
    # A built-in estimator or loss is its name.
    estimator = user.adv_estimator or config.training.adv_estimator
    if estimator not in ADVANTAGE_ESTIMATORS:
        hashes["adv_estimator"] = fingerprint(get_advantage_estimator(estimator).function)
    loss = user.policy_loss or config.training.policy_loss
    if loss not in POLICY_LOSSES:
        hashes["policy_loss"] = fingerprint(get_policy_loss(loss).function)
    if user.dataset is not None:
        hashes["dataset"] = dataset_hash(user.dataset)
    for part in user.mix:
        for name, value in identity(part.components, part.config).items():
            if value != hashes.get(name):  # shared components are named once
                hashes[f"{name} of {part.name}"] = value
    return hashes


def _environment(source: EnvironmentSource, config: EnvironmentConfig) -> EnvironmentConfig:
    if isinstance(source, str):
        return dataclasses.replace(config, name=source)
    reference = reference_to(source)
    if isinstance(source, BaseEnvironment):
        remade = _remaking_config(source, config)
        label = object_label(source) if remade is None else reference.label
        return dataclasses.replace(remade or source.config, name=label)
    if isinstance(source, functools.partial) and not source.args:
        try:
            given = json.loads(json.dumps(source.keywords))
        except (TypeError, ValueError):  # an object, which YAML cannot hold
            given = None
        if given == source.keywords:
            config = dataclasses.replace(config, params={**given, **config.params})
    return dataclasses.replace(config, name=reference.label)


def _remaking_config(
    environment: BaseEnvironment, settings: EnvironmentConfig
) -> EnvironmentConfig | None:
    """Return the config with which the class makes an equal environment, or None.

    It is the environment's own, or that of the settings: `Maze(**config.environment.params)`.
    """
    for config in (environment.config, settings):
        try:
            again = make_environment(type(environment), config)
            is_same = fingerprint(again) == fingerprint(environment)
            close_environment(again)
        except Exception:  # the user's constructor takes more than this config has
            continue
        if is_same:
            return config
    return None


def _algorithm(
    choice: EstimatorChoice | LossChoice,
    record: AdvantageEstimator | PolicyLoss,
    known: Mapping[str, AdvantageEstimator | PolicyLoss],
) -> str:
    """Return the name of an estimator or a loss: the given one, a built-in one, or its label."""
    if isinstance(choice, str):
        return choice
    name = next((name for name in known if known[name] == record), None)
    if name is not None:
        return name
    function: Any = record.function
    if record == type(record)(function):
        return callable_label(function)
    # A record that declares more than its function is named by its global variable.
    target = reference_to(function).target
    module = sys.modules.get(getattr(function, "__module__", ""))
    names = [name for name, value in vars(module).items() if value is record] if module else []
    if target is None or not names:
        return object_label(record)
    return f"{target.rpartition(':')[0]}:{names[0]}"


def _tool_entries(tools: ToolRegistry | Iterable[Any]) -> list[str | dict[str, Any]]:
    """Return entries from which the same tools can be made; others get a label.

    The tools of an MCP server are one entry, unless other tools are between them: a prompt lists
    tools in order.
    """
    entries: list[str | dict[str, Any]] = []
    for source, group in itertools.groupby(map(as_tool, tools), key=_server):
        neighbours = list(group)
        entry = None if source is None else source.entry
        if source is None or entry is None:
            entries += [_tool_entry(tool) for tool in neighbours]
        elif neighbours == source.tools:
            entries.append(dict(entry))
        else:
            entries.append({**entry, "only": [tool.name for tool in neighbours]})
    return entries


def _tools_description(
    tools: ToolRegistry | Iterable[Any] | None, config: ConfigStore
) -> list[Any]:
    """Return the definitions that the model sees and the code of the tools, to be hashed.

    MCP servers are identified by their entries: they are not started for this.
    """
    if tools is None:
        local = list(tools_by_name([entry for entry in config.tools if "mcp" not in entry]))
        entries: list[ToolEntry] = list(config.tools)
    else:
        every = [as_tool(tool) for tool in tools]
        local = [tool for tool in every if _server(tool) is None]
        entries = list(_tool_entries(every))
    servers = [
        {**entry, "mcp": shlex.join(server_words(entry["mcp"])), "cwd": None}
        for entry in entries
        if not isinstance(entry, str) and "mcp" in entry
    ]
    definitions = [tool.definition.to_openai() for tool in local]
    code = [fingerprint(tool.function) for tool in local]
    return [definitions, code, *([servers] if servers else [])]


def _server(tool: Tool) -> MCPTools | None:
    return tool.source if isinstance(tool, MCPTool) else None


def _tool_entry(tool: Tool) -> str | dict[str, Any]:
    if type(tool) is CalculatorTool:
        return "calculator"
    if isinstance(tool, FunctionTool):
        return callable_label(tool.function)
    if type(tool) is PythonCodeTool:
        entry: dict[str, Any] = {"tool": "python", "limits": dataclasses.asdict(tool.limits)}
        if tool.packages:
            is_all = tool.packages == package_folders(True)
            entry["packages"] = True if is_all else list(tool.packages)
        if not tool.isolated:  # only with the permission of the user
            entry["allow_unsafe"] = True
        return entry
    return instance_label(tool)


def _hash(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
